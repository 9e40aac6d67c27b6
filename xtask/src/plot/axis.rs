//! An axis: where a value lies, and which values are written beside it.

/// How values are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By powers of ten.
    Log,
}

/// An axis.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) title: String,
    pub(super) scale: Scale,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis on which all these values have a place; on a logarithmic one those above zero.
    pub(super) fn over(title: &str, scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| scale == Scale::Linear || *value > 0.0).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (from, to) = match scale {
            _ if values.is_empty() => (1.0, 10.0),
            Scale::Linear => (0.0, if most > 0.0 { most } else { 1.0 }),
            Scale::Log => Self::room(least, most),
        };
        Self { title: title.to_owned(), scale, from, to }
    }

    /// From the first mark at or below the least value to the first at or above the most.
    fn room(least: f64, most: f64) -> (f64, f64) {
        let below = marks(least).rev().find(|mark| *mark <= least * 1.0001).unwrap_or(least);
        let above = marks(most).find(|mark| *mark >= most * 0.9999).unwrap_or(most);
        (below, if above > below { above } else { below * 10.0 })
    }

    /// Where a value lies, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Log => (value / self.from).log10() / (self.to / self.from).log10(),
        }
    }

    /// The values that are written, in order.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.to);
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some ten steps")]
                let count = rounded(self.to / step).floor() as u32;
                (0..=count).map(|number| f64::from(number) * step).collect()
            }
            Scale::Log => {
                let decades = (self.to / self.from).log10();
                // 1, 2, 5 while there is room for them.
                let all = decades_of(self.from, self.to);
                let written = all.filter(|(mantissa, _)| decades <= 3.5 || *mantissa == 1.0);
                written.map(|(_, mark)| mark).filter(|mark| (0.0..=1.0).contains(&rounded(self.place(*mark)))).collect()
            }
        }
    }
}

/// A place without the last digits, in which 1 may be a little more than 1.
fn rounded(place: f64) -> f64 {
    (place * 1e6).round() / 1e6
}

/// 1, 2 and 5 times powers of ten, around a value.
fn marks(value: f64) -> impl DoubleEndedIterator<Item = f64> {
    decades_of(value, value).map(|(_, mark)| mark).collect::<Vec<_>>().into_iter()
}

/// Marks with what they are times a power of ten, from a decade below `from` to one above `to`.
fn decades_of(from: f64, to: f64) -> impl Iterator<Item = (f64, f64)> {
    #[expect(clippy::cast_possible_truncation, reason = "exponents of seconds and disks")]
    let [first, last] = [from, to].map(|value| value.log10().floor() as i32);
    (first - 1..=last + 1)
        .flat_map(|exponent| [1.0, 2.0, 5.0].map(|mantissa| (mantissa, mantissa * 10f64.powi(exponent))))
}

/// A round step that divides `to` into at most ten.
fn step(to: f64) -> f64 {
    decades_of(to / 10.0, to).map(|(_, mark)| mark).find(|mark| to / mark <= 10.0).unwrap_or(to)
}

/// A value as it is written, in millionths at most.
pub(super) fn label(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        let labels = |axis: &Axis| axis.ticks().into_iter().map(label).collect::<Vec<_>>().join(" ");
        for (scale, values, ticks) in [
            (Scale::Linear, &[1.0, 100.0][..], "0 10 20 30 40 50 60 70 80 90 100"),
            (Scale::Linear, &[0.3], "0 0.05 0.1 0.15 0.2 0.25 0.3"),
            (Scale::Linear, &[37.0], "0 5 10 15 20 25 30 35"),
            (Scale::Log, &[1.0, 100.0], "1 2 5 10 20 50 100"),
            (Scale::Log, &[0.3, 205.19], "0.2 0.5 1 2 5 10 20 50 100 200 500"),
            (Scale::Log, &[0.0001, 10.0], "0.0001 0.001 0.01 0.1 1 10"),
            (Scale::Log, &[0.0, 5.0], "5 10 20 50"),
            (Scale::Log, &[], "1 2 5 10"),
        ] {
            let axis = Axis::over("", scale, values.iter().copied());
            assert_eq!(labels(&axis), ticks, "{scale:?} {values:?}");
        }
    }

    #[test]
    fn values_have_their_places() {
        for (scale, value, place) in [
            (Scale::Linear, 0.0, 0.0),
            (Scale::Linear, 25.0, 0.25),
            (Scale::Log, 1.0, 0.0),
            (Scale::Log, 10.0, 0.5),
            (Scale::Log, 100.0, 1.0),
        ] {
            let axis = Axis::over("", scale, [1.0, 100.0].into_iter());
            assert!((axis.place(value) - place).abs() < 1e-9, "{scale:?} {value}");
        }
    }

    #[test]
    fn labels() {
        for (value, text) in [(0.0, "0"), (0.0005, "0.0005"), (0.2, "0.2"), (1.0, "1"), (250.0, "250")] {
            assert_eq!(label(value), text);
        }
    }
}
