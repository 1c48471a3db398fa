//! The server as a whole, with real sockets and files.

#[cfg(test)]
mod agents;
#[cfg(test)]
mod bbs;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod data_dir;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod http;
#[cfg(test)]
mod placement;
#[cfg(test)]
mod restart;
