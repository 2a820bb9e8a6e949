//! Progress bars: for whatever takes longer than a moment, on standard error, only where a person looks.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use periscope_workloads::Progress;

/// What takes less than this shows no bar.
const MOMENT: Duration = Duration::from_millis(400);

/// Shows one bar at a time: a new one for each new kind of work.
#[derive(Default)]
pub(crate) struct Bars {
    current: Mutex<Option<Bar>>,
}

struct Bar {
    what: String,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress for Bars {
    fn step(&self, what: &str, done: u64, total: u64) {
        let mut current = self.current.lock().expect("nothing panics with the bar");
        if current.as_ref().is_none_or(|bar| bar.what != what) {
            clear(current.take());
            *current = Some(Bar { what: what.to_owned(), started: Instant::now(), bar: None });
        }
        let Some(bar) = current.as_mut() else { return };
        if bar.bar.is_none() && bar.started.elapsed() >= MOMENT {
            let style = ProgressStyle::with_template("{msg:<26} {bar:32} {pos}/{len} {eta}").expect("a valid template");
            bar.bar = Some(
                ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
                    .with_style(style)
                    .with_message(bar.what.clone()),
            );
        }
        if let Some(bar) = &bar.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl Bars {
    /// Shows that `what` goes on while `work` runs: a bar that moves by itself, for work that cannot be asked how far it is.
    pub(crate) fn during<R>(&self, what: &str, work: impl FnOnce() -> R) -> R {
        self.clear();
        let style = ProgressStyle::with_template("{msg:<26} {spinner} {elapsed}").expect("a valid template");
        let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
            .with_style(style)
            .with_message(what.to_owned());
        // The first tick comes after a moment, so short work shows nothing.
        spinner.enable_steady_tick(MOMENT);
        let result = work();
        spinner.finish_and_clear();
        result
    }

    /// Takes the bar off the screen.
    pub(crate) fn clear(&self) {
        clear(self.current.lock().expect("nothing panics with the bar").take());
    }
}

fn clear(bar: Option<Bar>) {
    if let Some(bar) = bar.and_then(|bar| bar.bar) {
        bar.finish_and_clear();
    }
}
