//! The benchmark suite and its budgets.
