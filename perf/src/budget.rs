//! The promises in `budgets.toml`, and the check whether results keep them.

use serde::{Deserialize, Serialize};

use crate::harness::Metric;

/// The text of `budgets.toml`, compiled into the program.
const TEXT: &str = include_str!("../budgets.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    budget: Vec<Budget>,
}

/// One promise and its bound.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Budget {
    /// The promise as a sentence.
    pub(crate) promise: String,
    /// The subject that measures the promise.
    pub(crate) subject: String,
    /// The metric within the subject.
    pub(crate) metric: String,
    /// The median must be at least this.
    pub(crate) at_least: Option<f64>,
    /// The median must be at most this.
    pub(crate) at_most: Option<f64>,
    /// The rival in the ratio, if the metric has more than one.
    pub(crate) rival: Option<String>,
    /// The lower bound of the ratio of our value to the rival's.
    pub(crate) ratio_at_least: Option<f64>,
    /// The upper bound of the ratio of our value to the rival's.
    pub(crate) ratio_at_most: Option<f64>,
    /// The reason why the promise is not measured or reached yet, or the work that will change that.
    pub(crate) pending: Option<String>,
}

/// The outcome of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// Kept in this run.
    Kept,
    /// Not kept in this run.
    Missed,
    /// No subject measures the promise yet.
    Pending,
    /// The subject of the promise did not run.
    Unmeasured,
}

/// A promise and its outcome.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BudgetResult {
    pub(crate) budget: Budget,
    pub(crate) outcome: Outcome,
    pub(crate) found: String,
}

/// Reads `budgets.toml`.
pub(crate) fn load() -> anyhow::Result<Vec<Budget>> {
    let file: File = toml::from_str(TEXT)?;
    for budget in &file.budget {
        let bounds = [
            budget.at_least,
            budget.at_most,
            budget.ratio_at_least,
            budget.ratio_at_most,
        ];
        anyhow::ensure!(
            bounds.iter().flatten().count() == 1,
            "budget `{}` needs exactly one bound",
            budget.promise
        );
    }
    Ok(file.budget)
}

/// Compares `results` with `budgets`. Budgets of subjects outside `subjects` are left out, unless `subjects` is
/// empty.
pub(crate) fn compare_with_budgets(
    budgets: &[Budget],
    results: &[(String, Metric)],
    subjects: &[String],
) -> Vec<BudgetResult> {
    budgets
        .iter()
        .filter(|budget| subjects.is_empty() || subjects.contains(&budget.subject))
        .map(|budget| {
            let (outcome, found) = verdict(budget, results);
            BudgetResult {
                budget: budget.clone(),
                outcome,
                found,
            }
        })
        .collect()
}

fn verdict(budget: &Budget, results: &[(String, Metric)]) -> (Outcome, String) {
    if let Some(reason) = &budget.pending {
        return (Outcome::Pending, reason.clone());
    }
    let metric = results
        .iter()
        .find(|(subject, metric)| *subject == budget.subject && metric.name == budget.metric);
    let Some((_, metric)) = metric else {
        return (
            Outcome::Unmeasured,
            "the subject gave no such metric in this run".to_owned(),
        );
    };
    let median = metric.ours.median();
    let (kept, found) = if let Some(bound) = budget.at_least {
        (
            median >= bound,
            format!("{median:.1} {}, promised at least {bound}", metric.unit),
        )
    } else if let Some(bound) = budget.at_most {
        (
            median <= bound,
            format!("{median:.1} {}, promised at most {bound}", metric.unit),
        )
    } else {
        let rival = match &budget.rival {
            Some(name) => metric.rivals.iter().find(|rival| rival.name == *name),
            None => metric.rivals.first(),
        };
        let Some(rival) = rival else {
            return (
                Outcome::Unmeasured,
                "the metric has no such rival in this run".to_owned(),
            );
        };
        let ratio = metric.ratio(rival);
        let found = format!("{ratio:.2} of {}, promised at", rival.name);
        match (budget.ratio_at_least, budget.ratio_at_most) {
            (Some(bound), _) => (ratio >= bound, format!("{found} least {bound}")),
            (None, Some(bound)) => (ratio <= bound, format!("{found} most {bound}")),
            (None, None) => (false, "no bound".to_owned()),
        }
    };
    (if kept { Outcome::Kept } else { Outcome::Missed }, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::MetricSet;

    fn budget(text: &str) -> Budget {
        toml::from_str(text).unwrap()
    }

    fn metric(values: &[f64]) -> (String, Metric) {
        let mut tally = MetricSet::default();
        for value in values {
            tally.add_muster_value("m", "x/s", *value);
            tally.add_rival_value("m", "x/s", "rival", 10.0);
        }
        ("s".to_owned(), tally.finish().remove(0))
    }

    #[test]
    fn budget_file_names_only_known_subjects() {
        let known = crate::subject::names();

        for budget in load().unwrap() {
            assert!(
                budget.pending.is_some() || known.contains(&budget.subject.as_str()),
                "{}",
                budget.promise
            );
        }
    }

    #[test]
    fn every_subject_has_a_row() {
        let budgets = load().unwrap();

        for name in crate::subject::names() {
            assert!(
                budgets.iter().any(|budget| budget.subject == name),
                "{name}"
            );
        }
    }

    #[test]
    fn a_ratio_below_its_bound_is_missed() {
        let budget =
            budget("promise = \"p\"\nsubject = \"s\"\nmetric = \"m\"\nratio_at_least = 0.5\n");

        assert_eq!(
            verdict(&budget, &[metric(&[1.0, 2.0, 3.0])]).0,
            Outcome::Missed
        );
        assert_eq!(verdict(&budget, &[metric(&[6.0])]).0, Outcome::Kept);
    }

    #[test]
    fn ratio_without_rival_is_unmeasured() {
        let budget = budget(
            "promise = \"p\"\nsubject = \"s\"\nmetric = \"m\"\nrival = \"other\"\nratio_at_most = 2.0\n",
        );

        assert_eq!(verdict(&budget, &[metric(&[1.0])]).0, Outcome::Unmeasured);
    }
}
