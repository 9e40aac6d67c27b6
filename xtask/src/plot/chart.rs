//! A chart of curves as SVG, on white so that it can be read on a dark page too. Curves differ by colour and by their marks.

use std::fmt::Write;

use super::axis::{Axis, label};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
/// Where the curves are; the legend is to the right of them.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 590.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 450.0;
/// Colours that differ also for those who see few (Okabe and Ito, "Color Universal Design").
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#000000"];

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Measured: a line with marks.
    Solid,
    /// By others: a dashed line with marks.
    Dashed,
    /// So many points that marks would hide the line.
    Steps,
}

/// A named curve; its points are in order.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) style: Style,
    pub(super) points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: String,
    /// What a reader must know beside it, a line each.
    pub(super) notes: Vec<String>,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) curves: Vec<Curve>,
}

impl Chart {
    /// The chart as an SVG file.
    pub(super) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
        );
        put(&mut svg, &text(LEFT, 28.0, "start", "font-size=\"16\" font-weight=\"bold\"", &self.title));
        self.draw_grid(&mut svg);
        for (number, curve) in self.curves.iter().enumerate() {
            self.draw_curve(&mut svg, number, curve);
        }
        for (number, note) in self.notes.iter().enumerate() {
            let y = TOP + 24.0 * self.curves.len() as f64 + 34.0 + 16.0 * number as f64;
            put(&mut svg, &text(RIGHT + 20.0, y, "start", "font-size=\"11\" fill=\"#555\"", note));
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_grid(&self, svg: &mut String) {
        for tick in self.x.ticks() {
            let x = self.x_of(tick);
            put(svg, &line(x, TOP, x, BOTTOM, "stroke=\"#e4e4e4\""));
            put(svg, &text(x, BOTTOM + 18.0, "middle", "", &label(tick)));
        }
        for tick in self.y.ticks() {
            let y = self.y_of(tick);
            put(svg, &line(LEFT, y, RIGHT, y, "stroke=\"#e4e4e4\""));
            put(svg, &text(LEFT - 8.0, y + 4.0, "end", "", &label(tick)));
        }
        put(svg, &line(LEFT, BOTTOM, RIGHT, BOTTOM, "stroke=\"#222\""));
        put(svg, &line(LEFT, TOP, LEFT, BOTTOM, "stroke=\"#222\""));
        let (middle, across) = (f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM));
        put(svg, &text(middle, BOTTOM + 42.0, "middle", "", &self.x.title));
        let turned = format!("transform=\"rotate(-90 20 {across})\"");
        put(svg, &text(20.0, across, "middle", &turned, &self.y.title));
    }

    fn draw_curve(&self, svg: &mut String, number: usize, curve: &Curve) {
        let colour = COLOURS[number % COLOURS.len()];
        let places: Vec<(f64, f64)> = curve.points.iter().map(|(x, y)| (self.x_of(*x), self.y_of(*y))).collect();
        let dash = if curve.style == Style::Dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let mut path = String::new();
        for (at, (x, y)) in places.iter().enumerate() {
            let to = match (at, curve.style) {
                (0, _) => format!("M{x:.1} {y:.1}"),
                (_, Style::Steps) => format!("H{x:.1}V{y:.1}"),
                _ => format!("L{x:.1} {y:.1}"),
            };
            path.push_str(&to);
        }
        put(svg, &format!("<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>"));
        if curve.style != Style::Steps {
            places.iter().for_each(|(x, y)| put(svg, &mark(number, colour, *x, *y)));
        }
        let (x, y) = (RIGHT + 20.0, TOP + 24.0 * number as f64 + 10.0);
        put(svg, &line(x, y, x + 30.0, y, &format!("stroke=\"{colour}\" stroke-width=\"2\"{dash}")));
        if curve.style != Style::Steps {
            put(svg, &mark(number, colour, x + 15.0, y));
        }
        put(svg, &text(x + 38.0, y + 4.0, "start", "", &curve.name));
    }

    fn x_of(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (RIGHT - LEFT)
    }

    fn y_of(&self, value: f64) -> f64 {
        BOTTOM - self.y.place(value) * (BOTTOM - TOP)
    }
}

/// A mark: each of the first curves has its own shape.
fn mark(number: usize, colour: &str, x: f64, y: f64) -> String {
    match number % 3 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"),
        1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\" fill=\"{colour}\"/>", x - 4.0, y - 4.0),
        _ => {
            let (left, right, top, bottom) = (x - 5.0, x + 5.0, y - 5.0, y + 4.0);
            format!("<path d=\"M{left:.1} {bottom:.1}H{right:.1}L{x:.1} {top:.1}Z\" fill=\"{colour}\"/>")
        }
    }
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64, how: &str) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {how}/>")
}

fn text(x: f64, y: f64, anchor: &str, how: &str, text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {how}>{escaped}</text>")
}

fn put(svg: &mut String, element: &str) {
    // A string takes all that is written to it.
    let _ = writeln!(svg, "{element}");
}

#[cfg(test)]
mod tests {
    use super::super::axis::Scale;
    use super::*;

    fn chart(style: Style) -> String {
        Chart {
            title: "a < b & c".into(),
            notes: vec!["a note".into()],
            x: Axis::over("disks", Scale::Log, [1.0, 100.0].into_iter()),
            y: Axis::over("seconds", Scale::Linear, [10.0].into_iter()),
            curves: vec![Curve { name: "one".into(), style, points: vec![(1.0, 0.0), (10.0, 5.0), (100.0, 10.0)] }],
        }
        .svg()
    }

    #[test]
    fn a_curve_is_where_its_values_are() {
        assert!(chart(Style::Solid).contains("d=\"M70.0 450.0L330.0 250.0L590.0 50.0\""));
        assert!(chart(Style::Steps).contains("d=\"M70.0 450.0H330.0V250.0H590.0V50.0\""));
        assert!(chart(Style::Dashed).contains("stroke-dasharray"));
    }

    #[test]
    fn all_is_named_and_escaped_on_white() {
        let svg = chart(Style::Solid);
        for part in ["a &lt; b &amp; c", ">disks<", ">seconds<", ">one<", ">a note<", "fill=\"#fff\""] {
            assert!(svg.contains(part), "{part}");
        }
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }
}
