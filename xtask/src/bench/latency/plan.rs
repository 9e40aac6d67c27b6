//! How many attaches are made by whom: rounds of guests that live at the same time.

/// Disks of a guest that is created with them.
const COLD: usize = 32;
/// Disks that are attached to each of the running guests, one after the other.
const HOT: usize = 8;
/// Guests of each kind: each kind is served by a lane of its own, so two commands of xl's run at a time.
pub(super) const GUESTS: usize = 2;

/// Guests that live side by side, with how many disks each gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Round {
    /// Guests that are created with their disks.
    pub cold: [usize; GUESTS],
    /// Each of the guests that get them while they run.
    pub hot: usize,
}

impl Round {
    /// All its attaches.
    pub(super) fn attaches(&self) -> usize {
        self.cold.iter().sum::<usize>() + GUESTS * self.hot
    }
}

/// Rounds of `attaches` in all; one in five is a hot one, so that 3,352 have over 500 of them.
pub(super) fn rounds(attaches: usize) -> Vec<Round> {
    let (mut left, mut all) = (attaches, vec![]);
    while left > 0 {
        // The hot ones first: few attaches have some too.
        let hot = HOT.min(left / GUESTS);
        left -= GUESTS * hot;
        let cold = std::array::from_fn(|_| {
            let taken = COLD.min(left);
            left -= taken;
            taken
        });
        all.push(Round { cold, hot });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_make_exactly_what_was_asked_for() {
        for attaches in [0, 1, 9, 80, 81, 200, 3352] {
            let rounds = rounds(attaches);
            assert_eq!(rounds.iter().map(Round::attaches).sum::<usize>(), attaches);
            assert!(rounds.iter().all(|round| round.attaches() > 0));
        }
        let hot: usize = rounds(3352).iter().map(|round| GUESTS * round.hot).sum();
        assert!(hot >= 500, "{hot}");
        assert_eq!(rounds(9), [Round { cold: [1, 0], hot: 4 }]);
    }
}
