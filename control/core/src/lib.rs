//! The pure control plane: state, commands, scheduler, broker, leader duties.
