//! `cargo xtask plot`: pictures of what `cargo xtask bench --json` measured.

mod attach;
mod axis;
mod chart;
mod latency;

use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;

use crate::options::Answer;
use crate::project::Project;

/// Draws what 'cargo xtask bench --json' measured
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Files that bench wrote, all of the same benchmark
    #[arg(required = true, value_name = "FILE.json")]
    files: Vec<PathBuf>,
    /// Where to draw [default: docs/attach.svg, docs/latency.svg by benchmark]
    #[arg(long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
}

/// Runs the subcommand.
pub(crate) fn run(project: &Project, arguments: &Arguments) -> anyhow::Result<Answer> {
    let read = |file: &PathBuf| -> anyhow::Result<Value> {
        let name = file.display().to_string();
        serde_json::from_slice(&std::fs::read(file).with_context(|| name.clone())?).context(name)
    };
    let benches = arguments.files.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    let name = benches.first().and_then(|bench| bench["bench"].as_str()).unwrap_or("?");
    anyhow::ensure!(benches.iter().all(|bench| bench["bench"] == name), "these are not all rows of bench {name}");
    let rows: Vec<&Value> = benches.iter().filter_map(|bench| bench["rows"].as_array()).flatten().collect();
    let svg = match name {
        "attach" => attach::draw(&rows)?,
        "latency" => latency::draw(&rows)?,
        other => anyhow::bail!("there is no picture of bench {other}: attach and latency are drawn"),
    };
    let output = arguments.output.clone().unwrap_or_else(|| project.root.join(format!("docs/{name}.svg")));
    std::fs::write(&output, svg).with_context(|| output.display().to_string())?;
    println!("plot: {}", output.display());
    Ok(Answer::Held)
}
