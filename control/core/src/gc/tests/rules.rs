//! A table of what goes and what stays, over virtual time.
