//! The wanted state, health, canary mark and transition of an allocation, in one byte of its row.

use muster_domain::alloc::{DesiredStatus, Transition};

const DESIRED: u8 = 0b11;
const HEALTH: u8 = 0b11 << 2;
const HEALTHY: u8 = 0b01 << 2;
const UNHEALTHY: u8 = 0b10 << 2;
const CANARY: u8 = 1 << 4;
const MIGRATE: u8 = 1 << 5;
const RESCHEDULE: u8 = 1 << 6;
const FORCE_RESCHEDULE: u8 = 1 << 7;

/// Wanted status, health, canary mark and transition. The bits are in snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct AllocFlags(u8);

impl AllocFlags {
    pub(super) fn bits(self) -> u8 {
        self.0
    }

    pub(super) fn desired(self) -> DesiredStatus {
        match self.0 & DESIRED {
            0 => DesiredStatus::Run,
            1 => DesiredStatus::Stop,
            _ => DesiredStatus::Evict,
        }
    }

    pub(super) fn set_desired(&mut self, desired: DesiredStatus) {
        let bits = match desired {
            DesiredStatus::Run => 0,
            DesiredStatus::Stop => 1,
            DesiredStatus::Evict => 2,
        };
        self.0 = self.0 & !DESIRED | bits;
    }

    pub(super) fn healthy(self) -> Option<bool> {
        match self.0 & HEALTH {
            HEALTHY => Some(true),
            UNHEALTHY => Some(false),
            _ => None,
        }
    }

    pub(super) fn set_healthy(&mut self, healthy: Option<bool>) {
        let bits = match healthy {
            Some(true) => HEALTHY,
            Some(false) => UNHEALTHY,
            None => 0,
        };
        self.0 = self.0 & !HEALTH | bits;
    }

    pub(super) fn canary(self) -> bool {
        self.0 & CANARY != 0
    }

    pub(super) fn set_canary(&mut self, canary: bool) {
        self.set(CANARY, canary);
    }

    pub(super) fn transition(self) -> Transition {
        Transition {
            migrate: self.0 & MIGRATE != 0,
            reschedule: self.0 & RESCHEDULE != 0,
            force_reschedule: self.0 & FORCE_RESCHEDULE != 0,
        }
    }

    pub(super) fn set_transition(&mut self, transition: Transition) {
        let Transition {
            migrate,
            reschedule,
            force_reschedule,
        } = transition;
        self.set(MIGRATE, migrate);
        self.set(RESCHEDULE, reschedule);
        self.set(FORCE_RESCHEDULE, force_reschedule);
    }

    fn set(&mut self, bit: u8, on: bool) {
        self.0 = self.0 & !bit | if on { bit } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_its_own() {
        let mut marks = AllocFlags::default();
        marks.set_desired(DesiredStatus::Evict);
        marks.set_healthy(Some(false));
        marks.set_canary(true);
        marks.set_transition(Transition {
            migrate: true,
            reschedule: false,
            force_reschedule: true,
        });
        marks.set_desired(DesiredStatus::Stop);

        assert_eq!(marks.desired(), DesiredStatus::Stop);
        assert_eq!(marks.healthy(), Some(false));
        assert!(marks.canary());
        assert!(marks.transition().migrate && marks.transition().force_reschedule);
        assert!(!marks.transition().reschedule);
    }
}
