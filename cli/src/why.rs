//! `muster why`: why instances of a job can go to nodes or not.

use clap::Args;
use muster_wire::api::why::{Why, WhyNode};

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// Arguments of `muster why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The job, or one of its groups.
    #[arg(value_name = "JOB[/GROUP]")]
    pub job: String,
    /// Show every node. Default: the nodes that fit and those that lack least.
    #[arg(long)]
    pub all: bool,
}

/// The number of nodes shown by default.
const SHOWN: usize = 20;

/// Runs the command. Exit code 1 if a group lacks instances that no node can take.
///
/// # Errors
///
/// [`CliError`].
pub fn run(client: &Client, json: bool, args: &WhyArgs) -> CliResult {
    let (job_id, group) = resolve(client, &args.job)?;
    let query = group.map_or_else(String::new, |group| format!("?group={}", escape(&group)));
    let groups: Vec<Why> = client.get(&format!("/v1/job/{}/why{query}", escape(&job_id)))?;
    let is_stuck = groups.iter().any(|why| why.missing > 0 && why.fitting == 0);
    if json {
        output::print_json(&groups)?;
    } else {
        for why in &groups {
            show(&job_id, why, args.all)?;
        }
    }
    Ok(if is_stuck { Exit::Failed } else { Exit::Done })
}

/// The job's id, which may have slashes itself, and the group, if one is named.
fn resolve(client: &Client, name: &str) -> Result<(String, Option<String>), CliError> {
    let whole = names::job(client, name, names::Access::Show);
    match (whole, name.rsplit_once('/')) {
        (Ok(id), _) => Ok((id, None)),
        (Err(_), Some((job, group))) => Ok((
            names::job(client, job, names::Access::Show)?,
            Some(group.to_owned()),
        )),
        (Err(error), None) => Err(error),
    }
}

fn show(job_id: &str, why: &Why, all: bool) -> Result<(), CliError> {
    let name = output::clean(&format!("{job_id}/{}", why.group));
    let missing = match why.missing {
        0 => "has all its instances".to_owned(),
        missing => format!("lacks {missing}"),
    };
    let nodes = why.nodes.len();
    output::print(&format!(
        "{name} {missing}; one more fits {} of {nodes} nodes.\n",
        why.fitting
    ))?;
    if !why.advice.is_empty() {
        output::print(&format!("Nearest: {}.\n", output::clean(&why.advice)))?;
    }
    let shown = if all { nodes } else { nodes.min(SHOWN) };
    let mut table = output::table(&["Node", "Score", "Why not"]);
    for node in &why.nodes[..shown] {
        table.add_row(row(node));
    }
    output::print_table(&table)?;
    if shown < nodes {
        output::print(&format!(
            "not shown: {}; --all shows all.\n",
            output::count_with_noun(nodes - shown, "node")
        ))?;
    }
    Ok(())
}

fn row(node: &WhyNode) -> [String; 3] {
    let score = node
        .score
        .map_or_else(|| "-".to_owned(), |score| format!("{score:.3}"));
    let texts: Vec<&str> = node
        .obstacles
        .iter()
        .map(|obstacle| obstacle.text.as_str())
        .collect();
    let why = if node.fits {
        "fits".to_owned()
    } else {
        texts.join("; ")
    };
    [output::clean(&node.node_name), score, output::clean(&why)]
}
