//! The `muster` binary as its users meet it.

#[cfg(test)]
mod dev;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod support;
