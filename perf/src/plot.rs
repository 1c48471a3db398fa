//! The cost of a placement by the number of nodes, as an SVG drawing.
//!
//! Every metric with a name of the form `<what>_cost_<shape>_on_<nodes>` is a point of the line `<what> <shape>`.
//! Both axes are logarithmic. A flat line means that the cost does not depend on the number of nodes. A browser is
//! enough to show the drawing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::harness::Metric;

/// The size of the drawing. The constants below give the frame of the axes within it.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 660.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 540.0;

/// Colours that are distinguishable for colour-blind readers, together with the numbers of the marks.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31",
];

/// The points of one line: nodes, and nanoseconds per placement.
type PlotLine = Vec<(f64, f64)>;

/// Draws `results` into the file `path`.
pub(crate) fn write(path: &Path, results: &[(String, Metric)]) -> anyhow::Result<()> {
    let lines = lines(results);
    anyhow::ensure!(
        !lines.is_empty(),
        "no result says the cost of a placement: run the subject `schedule`"
    );
    Ok(std::fs::write(path, draw(&lines))?)
}

fn lines(results: &[(String, Metric)]) -> BTreeMap<String, PlotLine> {
    let mut lines: BTreeMap<String, PlotLine> = BTreeMap::new();
    for (_, metric) in results {
        let Some((what, shape, nodes)) = parts(&metric.name) else {
            continue;
        };
        let name = format!("{what} {shape}");
        let mut add = |name: String, value| lines.entry(name).or_default().push((nodes, value));
        add(name.clone(), metric.ours.median());
        // Only the rivals that scan get lines. The other rivals are points of the same line.
        for rival in metric
            .rivals
            .iter()
            .filter(|rival| rival.name.contains("scan"))
        {
            add(format!("{name}: {}", rival.name), rival.theirs.median());
        }
    }
    for line in lines.values_mut() {
        line.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    lines
}

/// Splits a name into the measured quantity, the jobs, and the number of nodes.
fn parts(name: &str) -> Option<(&str, &str, f64)> {
    let (what, rest) = name.split_once("_cost_")?;
    let (shape, nodes) = rest.split_once("_on_")?;
    Some((what, shape, nodes.parse().ok()?))
}

/// A logarithmic axis between two powers of ten.
struct Axis {
    first: f64,
    last: f64,
    begin: f64,
    end: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, begin: f64, end: f64) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(0.0, f64::max);
        let first = least.log10().floor();
        Self {
            first,
            last: most.log10().ceil().max(first + 1.0),
            begin,
            end,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.log10() - self.first) / (self.last - self.first);
        self.begin + share * (self.end - self.begin)
    }

    /// Returns the powers of ten on the axis.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (mut power, last) = (self.first, self.last);
        std::iter::from_fn(move || {
            let tick = (power <= last).then(|| 10_f64.powf(power));
            power += 1.0;
            tick
        })
    }
}

fn draw(lines: &BTreeMap<String, PlotLine>) -> String {
    let points = || lines.values().flatten();
    let across = Axis::over(points().map(|point| point.0), LEFT, RIGHT);
    let up = Axis::over(points().map(|point| point.1), BOTTOM, TOP);
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#fff"/>
<text x="{LEFT}" y="28" font-size="16">Cost of a placement, by nodes (CPU time, medians)</text>
"##
    );
    let mut add = |line: std::fmt::Arguments<'_>| {
        svg.write_fmt(line)
            .expect("a string takes what it is given");
        svg.push('\n');
    };
    for tick in across.ticks() {
        let x = across.at(tick);
        add(format_args!(
            r##"<path d="M{x:.1} {TOP}V{BOTTOM}" stroke="#ddd"/><text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"##,
            BOTTOM + 20.0,
            amount(tick)
        ));
    }
    for tick in up.ticks() {
        let y = up.at(tick);
        add(format_args!(
            r##"<path d="M{LEFT} {y:.1}H{RIGHT}" stroke="#ddd"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"##,
            LEFT - 8.0,
            y + 4.0,
            time(tick)
        ));
    }
    add(format_args!(
        r#"<text x="{}" y="{}" text-anchor="middle">nodes</text>"#,
        f64::midpoint(LEFT, RIGHT),
        BOTTOM + 42.0
    ));
    for (number, (name, line)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let dashes = match number / COLOURS.len() {
            0 => "",
            _ => r#" stroke-dasharray="6 3""#,
        };
        let mut path: Vec<String> = Vec::new();
        for (nodes, nanos) in line {
            let (x, y) = (across.at(*nodes), up.at(*nanos));
            path.push(format!("{x:.1} {y:.1}"));
            add(format_args!(
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"><title>{name} on {}: {}</title></circle>"#,
                amount(*nodes),
                time(*nanos)
            ));
        }
        let y = TOP + 8.0 + 20.0 * number as f64;
        add(format_args!(
            r#"<path d="M{}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>
<path d="M{} {y}h24" stroke="{colour}" stroke-width="2"{dashes}/><text x="{}" y="{}">{name}</text>"#,
            path.join("L"),
            RIGHT + 16.0,
            RIGHT + 46.0,
            y + 4.0
        ));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Formats a number of nodes, with thin spaces between the thousands.
fn amount(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    text
}

/// Formats nanoseconds in a readable unit.
fn time(nanos: f64) -> String {
    match nanos {
        x if x >= 1e9 => format!("{:.3} s", x / 1e9),
        x if x >= 1e6 => format!("{:.3} ms", x / 1e6),
        x if x >= 1e3 => format!("{:.3} µs", x / 1e3),
        x => format!("{x:.1} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::MetricSet;

    #[test]
    fn costs_of_one_shape_are_one_line() {
        let mut tally = MetricSet::default();
        for (nodes, nanos) in [(10_000, 800.0), (100, 400.0)] {
            let name = format!("plan_cost_1x10000_on_{nodes}");
            tally.add_muster_value(&name, "ns/placement", nanos);
            tally.add_rival_value(&name, "ns/placement", "scan of all nodes a placement", 9e4);
            tally.add_rival_value(&name, "ns/placement", "the same on 100 nodes", 400.0);
        }
        tally.add_muster_value("plan_1x10000_on_100", "placements/s", 1e6);
        let results = tally.finish().into_iter();
        let results: Vec<_> = results.map(|metric| ("s".to_owned(), metric)).collect();

        let lines = lines(&results);

        let names: Vec<&str> = lines.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "plan 1x10000",
                "plan 1x10000: scan of all nodes a placement"
            ]
        );
        assert_eq!(lines["plan 1x10000"], [(100.0, 400.0), (10_000.0, 800.0)]);
    }

    /// Checks that all decades have the same length and that larger values are farther along the axis.
    #[test]
    fn axes_are_logarithmic() {
        let axis = Axis::over([300.0, 20_000.0].into_iter(), 0.0, 300.0);

        let ticks: Vec<String> = axis
            .ticks()
            .map(|tick| format!("{:.0}", axis.at(tick)))
            .collect();

        assert_eq!(ticks, ["0", "100", "200", "300"]);
    }
}
