//! The control plane's shell: raft, quic, http, leader duties, workers, storage.
