//! Comparing two policies: every request that they decide differently, or a proof that there is none.
//!
//! Destinations, protocols, ports and methods fall into a few classes that no rule tells apart any
//! further. For each class, every combination of path patterns that some path matches is found by
//! walking their automata, and both policies judge it. What is found is decided by both policies for
//! real before it is shown. Nothing here is ever equal because it was too much to look at.

mod addresses;
mod automaton;
mod beside;
mod bits;
mod cases;
mod effect;
mod extent;
mod inclusion;
mod judge;
mod letters;
mod places;
mod present;
mod probe;
mod reading;
mod report;
mod view;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use self::effect::Aspect;
pub use self::extent::Extent;
use self::judge::{Candidate, Side, Slot, Stratum};
use self::places::{Place, Positions};
use self::present::{Here, Presenter, Sketch};
use self::probe::Prober;
pub use self::report::{Answer, Beside, Change, Difference, Region, Undecided, Within};
use self::view::{View, Views};
use self::walk::Budget;
use crate::policy::Policy;

impl Policy {
    /// How `new` differs from this policy: exactly which requests one of them lets through and the
    /// other doesn't, or on which other terms, each with an example.
    #[must_use]
    pub fn diff(&self, new: &Self) -> Difference {
        let views = Views::new(self, new);
        let mut difference = compare(&views, &places::differing(&views), false).finish();
        difference.beside = beside::compare(self, new);
        difference
    }

    /// Whether this policy stays within `baseline`: whatever it lets through, the baseline lets
    /// through too, with no fewer limits, and with the credential that this one attaches.
    #[must_use]
    pub fn within(&self, baseline: &Self) -> Within {
        let views = Views::new(baseline, self);
        let presenter = compare(&views, &places::differing(&views), true);
        if let Some(change) = presenter.counterexample() {
            return Within::Counterexample {
                change: Box::new(change.clone()),
            };
        }
        let difference = presenter.finish();
        let mut beside = beside::compare(baseline, self);
        beside.retain(|beside| beside.widens);
        if difference.depends.is_empty() && difference.undecided.is_empty() && beside.is_empty() {
            return Within::Proven;
        }
        Within::Undecided {
            undecided: difference.undecided,
            depends: difference.depends,
            beside,
        }
    }
}

/// Sketches of a place, for all places with rules of the same shapes, and whether they are all.
type Sketches = HashMap<(Vec<Vec<u32>>, Vec<Vec<u32>>), (Vec<Sketch>, bool)>;

/// With `only_widening` only what gives more, up to the first that does so for sure.
fn compare<'v, 'a>(
    views: &'v Views<'a>,
    places: &[Place],
    only_widening: bool,
) -> Presenter<'v, 'a> {
    let mut budget = Budget::COMPARISON;
    let mut prober = Prober::new(views, only_widening);
    let mut presenter = Presenter::new(views);
    let mut sketches = Sketches::new();
    for place in places {
        let here = Here {
            old: side(&views.old, &place.old),
            new: side(&views.new, &place.new),
            place,
        };
        let shapes = (shapes(&here.old), shapes(&here.new));
        let known = sketches.entry(shapes);
        let drawn = known.or_insert_with(|| {
            let mut drawn = Vec::new();
            prober.forget();
            let ended = cases::differing(&here.old, &here.new, &mut budget, |case, budget| {
                let (findings, gaps) = prober.probe(&case, budget);
                drawn.push(Sketch::new(&case, findings, gaps));
            });
            (drawn, ended.is_ok())
        });
        let (drawn, is_whole) = &*drawn;
        presenter.add(&here, drawn);
        if !is_whole {
            presenter.give_up(place);
        }
        if only_widening && presenter.counterexample().is_some() {
            break;
        }
    }
    presenter
}

fn side<'v, 'a>(view: &'v View<'a>, positions: &Positions) -> Side<'v, 'a> {
    let layers = view.layers.iter().zip(positions).enumerate();
    let layers = layers.map(|(layer, (rules, positions))| Stratum {
        observes: rules.observes,
        rules: positions
            .iter()
            .enumerate()
            .filter_map(|(at, position)| {
                Some(Candidate {
                    slot: Slot { layer, at },
                    view: rules.rules.get(*position)?,
                })
            })
            .collect(),
    });
    Side {
        layers: layers.collect(),
    }
}

fn shapes(side: &Side<'_, '_>) -> Vec<Vec<u32>> {
    let layers = side.layers.iter();
    layers
        .map(|stratum| stratum.rules.iter().map(|rule| rule.view.shape).collect())
        .collect()
}
