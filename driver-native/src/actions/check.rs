//! Faults in a tree of actions.

use muster_domain::one_off::{ACTION_DEPTH_MAX, ACTIONS_MAX, Action};

/// Returns the first fault in the tree as an error.
pub(crate) fn check(tree: &Action) -> Result<(), String> {
    let mut count = 0;
    let mut level = vec![(tree, 1_usize)];
    while let Some((action, depth)) = level.pop() {
        count += 1;
        if depth > ACTION_DEPTH_MAX || count > ACTIONS_MAX {
            return Err(format!(
                "more than {ACTION_DEPTH_MAX} levels or {ACTIONS_MAX} actions"
            ));
        }
        let word = action.as_str();
        match action {
            Action::Download(it) if it.from.is_empty() || it.to.is_empty() => {
                return Err("a download action has no from or no to".to_owned());
            }
            Action::Upload(it) if it.from.is_empty() || it.to.is_empty() => {
                return Err("an upload action has no from or no to".to_owned());
            }
            Action::Run(run) if run.path.is_empty() => {
                return Err("a run action has no path".to_owned());
            }
            Action::Parallel(all) | Action::Serial(all) | Action::Codependent(all)
                if all.actions.is_empty() =>
            {
                return Err(format!("a {word} action has no actions"));
            }
            Action::Download(_)
            | Action::Upload(_)
            | Action::Run(_)
            | Action::Timeout(_)
            | Action::EmitProgress(_)
            | Action::Try(_)
            | Action::Parallel(_)
            | Action::Serial(_)
            | Action::Codependent(_) => {}
        }
        level.extend(action.children().iter().map(|child| (child, depth + 1)));
    }
    Ok(())
}
