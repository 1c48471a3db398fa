//! A seeded cluster on virtual time.
