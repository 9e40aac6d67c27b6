//! How many attaches are made by whom: rounds of guests that live at the same time.

/// Disks of a guest that is created with them.
const COLD: usize = 32;
/// Disks that are attached to a running guest, one after the other.
const HOT: usize = 8;

/// Guests that live side by side, with how many disks each gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Round {
    /// Guests that are created with their disks.
    pub cold: [usize; 2],
    /// Guests that get them while they run.
    pub hot: [usize; 2],
}

impl Round {
    /// All its attaches.
    pub(super) fn attaches(&self) -> usize {
        self.cold.iter().chain(&self.hot).sum()
    }
}

/// Rounds of `attaches` in all; one in five is a hot one, so that 3,352 have over 500 of them.
pub(super) fn rounds(attaches: usize) -> Vec<Round> {
    let mut left = attaches;
    let mut take = |most: usize| {
        let taken = most.min(left);
        left -= taken;
        taken
    };
    let mut all = vec![];
    loop {
        // The hot ones first: few attaches have some too.
        let hot = [take(HOT), take(HOT)];
        let cold = [take(COLD), take(COLD)];
        let round = Round { cold, hot };
        if round.attaches() == 0 {
            return all;
        }
        all.push(round);
    }
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
        let hot: usize = rounds(3352).iter().flat_map(|round| round.hot).sum();
        assert!(hot >= 500, "{hot}");
        assert_eq!(rounds(9), [Round { cold: [0, 0], hot: [8, 1] }]);
    }
}
