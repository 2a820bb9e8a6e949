//! Progress bars: for whatever takes longer than a moment, on standard error, only where a person looks.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use periscope_workloads::Progress;

/// A command that takes less than this shows no bar.
const MOMENT: Duration = Duration::from_millis(300);
/// How often a bar is redrawn while nothing is reported.
const TICK: Duration = Duration::from_millis(100);

/// Shows one bar at a time: a new one for each new kind of work.
pub(crate) struct Bars {
    started: Instant,
    current: Mutex<Option<Bar>>,
}

struct Bar {
    what: String,
    bar: Option<ProgressBar>,
}

impl Default for Bars {
    fn default() -> Self {
        Bars { started: Instant::now(), current: Mutex::default() }
    }
}

impl Progress for Bars {
    fn step(&self, what: &str, done: u64, total: u64) {
        let mut current = self.current.lock().expect("nothing panics with the bar");
        if current.as_ref().is_none_or(|bar| bar.what != what) {
            clear(current.take());
            *current = Some(Bar { what: what.to_owned(), bar: None });
        }
        let Some(Bar { bar, .. }) = current.as_mut() else { return };
        if bar.is_none() && self.started.elapsed() >= MOMENT {
            *bar = show("{msg:<26} {bar:32} {pos}/{len} {eta}", Some(total), what);
        }
        if let Some(bar) = bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

/// A bar, where a person looks.
fn show(template: &str, len: Option<u64>, what: &str) -> Option<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    let style = ProgressStyle::with_template(template).expect("a valid template");
    let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr()).with_style(style);
    let bar = bar.with_message(what.to_owned());
    bar.enable_steady_tick(TICK);
    Some(bar)
}

impl Bars {
    /// Shows that `what` goes on while `work` runs, for work that cannot be asked how far it is.
    pub(crate) fn during<R>(&self, what: &str, work: impl FnOnce() -> R) -> R {
        self.clear();
        let bar = show("{msg:<26} {spinner} {elapsed}", None, what);
        let result = work();
        clear(bar.map(|bar| Bar { what: what.to_owned(), bar: Some(bar) }));
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
