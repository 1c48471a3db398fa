//! Networks of allocations, and refused packets.
//!
//! | module | subject |
//! |---|---|
//! | `bridge` | network mode `bridge` |
//! | `cni` | networks that CNI plugins make |
//! | `verdicts` | packets that network policies refused |

pub(crate) mod bridge;
pub(crate) mod cni;
pub(crate) mod verdicts;
