use super::*;

const ID: &str = "alloc/web/0011aabb";

#[test]
fn task_errors_keep_their_kind() {
    let id = ID.to_owned();
    let errors = [
        TaskError::not_found(ID),
        TaskError::NotRunning {
            task_id: id.clone(),
        },
        TaskError::StillRunning { task_id: id },
        TaskError::UnknownSignal {
            signal: "SIGX".to_owned(),
        },
        DriverError::unsupported("ExecTask").into(),
        DriverError::Failed {
            message: "the disk is full".to_owned(),
            retry: Retry::Later,
        }
        .into(),
    ];

    for error in errors {
        let status = from_task_error(&error);
        assert_eq!(to_task_error("ExecTask", ID, "SIGX", &status), error);
    }
}

#[test]
fn recovery_errors_keep_their_kind() {
    let errors = [
        RecoverTaskError::Gone {
            task_id: ID.to_owned(),
            reason: "process 7 is another".to_owned(),
        },
        RecoverTaskError::HandleVersion {
            found: 9,
            supported: 1,
        },
        RecoverTaskError::InvalidHandle {
            reason: "no pid".to_owned(),
        },
    ];

    for error in errors {
        let status = from_recover_error(&error);
        assert_eq!(to_recover_error(ID, &status), error);
    }
}

/// Nomad's drivers send the text with any code that their library picks.
#[test]
fn not_found_text_of_foreign_drivers_is_recognised() {
    let status = Status::unknown(TASK_NOT_FOUND);

    let error = to_task_error("WaitTask", ID, "", &status);

    assert_eq!(error, TaskError::not_found(ID));
}

#[test]
fn failure_without_detail_is_not_tried_again() {
    let error = to_driver_error("Capabilities", &Status::unknown("boom"));

    assert_eq!(
        error,
        DriverError::Failed {
            message: "boom".to_owned(),
            retry: Retry::Never
        }
    );
}
