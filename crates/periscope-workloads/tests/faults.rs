//! Every device call of a session fails once: small workloads on every profile under every residency.
//!
//! A session has four phases: it opens, runs cold, runs warm, and everything is dropped. A first session counts the device
//! calls of each kind in each phase; then, for each phase, kind and n, a session on a new device is told to fail the
//! n-th call of that kind in that phase. Whatever failed:
//!
//! * the phase succeeds with right values, or fails with the injected cause in its text; a drop does neither;
//! * inputs are what they were;
//! * the next runs are right, if need be after what the failed run poisoned was written again, and whether or not
//!   everything is read before;
//! * at the end every allocation is freed and every mapping ended, except what this fault kept from it.
//!
//! With `PERISCOPE_LONG=1` a second call of the phase fails too, of each kind, with and without one of that kind before it:
//! among these are the calls that undo what the first failure left half done.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use periscope::{Device, Direction, ErrorKind, MemorySettings};
use periscope_cts::faults::{Faulty, INJECTED, OPS, PROFILES};
use periscope_hal::{Device as _, DeviceOp};
use periscope_workloads::{NoProgress, Prepared, Residency, Session, WorkloadError, find};

/// Combinations that are known to go wrong, as [`Try`] prints them, each with the reason. They are left out.
const KNOWN: &[(&str, &str)] = &[];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    Cold,
    Warm,
    Drop,
}

const PHASES: [Phase; 4] = [Phase::Open, Phase::Cold, Phase::Warm, Phase::Drop];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The n-th call of a kind.
    Call(DeviceOp, usize),
    /// The pushes of the launch.
    Push,
    /// The launch, after its tasks have run.
    End,
}

impl Fault {
    fn is(self, op: DeviceOp) -> bool {
        matches!(self, Fault::Call(failed, _) if failed == op)
    }
}

/// What is tried: one fault in one phase of one session.
#[derive(Clone, Copy, Debug)]
struct Try {
    name: &'static str,
    prepared: &'static Prepared,
    uri: &'static str,
    residency: Residency,
    /// None: the calls are counted.
    fault: Option<(Phase, Fault)>,
    /// A call that fails too, if it comes.
    second: Option<(DeviceOp, usize)>,
    /// Whether all tensors are read after a failure, before the next run: a read may make good what a run would trip over.
    look: bool,
}

impl fmt::Display for Try {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}, {}", self.name, self.uri, self.residency)?;
        match self.fault {
            Some((phase, Fault::Call(op, n))) => write!(f, ", {phase:?}: {op} {n}"),
            Some((phase, fault)) => write!(f, ", {phase:?}: {fault:?}"),
            None => Ok(()),
        }?;
        if let Some((op, n)) = self.second {
            write!(f, " and {op} {n}")?;
        }
        f.write_str(if self.look { ", read before the next run" } else { "" })
    }
}

/// What became of a phase whose call failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    /// It succeeded all the same.
    Served,
    /// It failed, and poisoned nothing.
    Failed,
    /// It failed and poisoned something; the next run wrote that anew and was right at once.
    Poisoned,
    /// It failed, and the next run was refused until what was poisoned had been written again.
    Refused,
}

/// Of each phase: the calls of each kind, and whether a launch carried pushes.
type Counts = Vec<(Phase, Vec<(DeviceOp, usize)>, bool)>;

fn is_poisoned(error: &WorkloadError) -> bool {
    matches!(error, WorkloadError::Run(error) if matches!(error.kind(), ErrorKind::Poisoned { .. }))
}

fn is_no_value(error: &WorkloadError) -> bool {
    matches!(error, WorkloadError::Run(error) if matches!(error.kind(), ErrorKind::NoValue { .. }))
}

fn check(session: &Session<'_>) -> Result<(), String> {
    match session.check() {
        Ok(check) if check.pass => Ok(()),
        Ok(check) => Err(format!("wrong values: {check:?}")),
        Err(error) => Err(format!("the values cannot be read: {error}")),
    }
}

impl Try {
    /// Goes through the phases; what is wrong is the error.
    fn go(self) -> Result<(Outcome, Counts), String> {
        let hal = Faulty::open(self.uri);
        let device = Device::from_hal(Arc::clone(&hal) as Arc<dyn periscope_hal::Device>, MemorySettings::default());
        let mut counts = Counts::new();
        let mut outcome = Outcome::Served;

        self.begin(&hal, Phase::Open);
        let opened = Session::open(&device, self.prepared, self.residency);
        self.end(&hal, Phase::Open, &mut counts)?;
        let mut session = match opened {
            Ok(session) => session,
            Err(error) => {
                self.assert_injected(Phase::Open, &error)?;
                outcome = Outcome::Failed;
                Session::open(&device, self.prepared, self.residency).map_err(|error| format!("open again: {error}"))?
            }
        };

        for phase in [Phase::Cold, Phase::Warm] {
            self.begin(&hal, phase);
            let result = session.run();
            self.end(&hal, phase, &mut counts)?;
            match result {
                Ok(_) => check(&session).map_err(|wrong| format!("{phase:?}: {wrong}"))?,
                Err(error) => {
                    self.assert_injected(phase, &error)?;
                    outcome = self.run_again(&device, &mut session)?;
                }
            }
        }
        // Later runs do not remember either.
        if self.fault.is_some() {
            session.run().map_err(|error| format!("the last run: {error}"))?;
            check(&session).map_err(|wrong| format!("the last run: {wrong}"))?;
        }
        self.assert_inputs(&session)?;

        self.begin(&hal, Phase::Drop);
        drop(session);
        drop(device);
        self.end(&hal, Phase::Drop, &mut counts)?;
        self.assert_balance(&hal)?;
        Ok((outcome, counts))
    }

    fn begin(self, hal: &Faulty, phase: Phase) {
        hal.forget_calls();
        hal.take_pushes();
        match self.fault {
            Some((when, Fault::Call(op, n))) if when == phase => hal.fail(op, n),
            Some((when, Fault::Push)) if when == phase => hal.fail_push(),
            Some((when, Fault::End)) if when == phase => hal.fail_end(),
            _ => {}
        }
        if let (Some((when, _)), Some((op, n))) = (self.fault, self.second)
            && when == phase
        {
            hal.fail(op, n);
        }
    }

    fn end(self, hal: &Faulty, phase: Phase, counts: &mut Counts) -> Result<(), String> {
        let calls = OPS.map(|op| (op, hal.count(op)));
        counts.push((
            phase,
            calls.into_iter().filter(|(_, count)| *count > 0).collect(),
            !hal.take_pushes().is_empty(),
        ));
        if hal.disarm() && self.second.is_none() {
            return Err("the call did not come, though it did when calls were counted".into());
        }
        Ok(())
    }

    fn assert_injected(self, phase: Phase, error: &WorkloadError) -> Result<(), String> {
        let text = error.to_string();
        if self.fault.is_none_or(|(when, _)| when != phase) {
            return Err(format!("{phase:?} failed and nothing was injected there: {text}"));
        }
        if !text.contains(INJECTED) {
            return Err(format!("the cause is not in the error: {text}"));
        }
        Ok(())
    }

    /// No run may change an IN argument, wherever it lives.
    fn assert_inputs(self, session: &Session<'_>) -> Result<(), String> {
        for (position, tensor) in self.prepared.tensors.iter().enumerate() {
            if tensor.direction == Direction::In {
                let values = session.values(position).map_err(|error| format!("input `{}`: {error}", tensor.name))?;
                if values.bytes() != tensor.host.bytes() {
                    return Err(format!("input `{}` has changed", tensor.name));
                }
            }
        }
        Ok(())
    }

    /// What can be read after a failed run: a resident output that tasks may have written is poisoned, and only such.
    fn poisoned(self, session: &Session<'_>) -> Result<Outcome, String> {
        let mut outcome = Outcome::Failed;
        for (position, tensor) in self.prepared.tensors.iter().enumerate() {
            match session.values(position) {
                Ok(_) => {}
                Err(error) if is_poisoned(&error) => outcome = Outcome::Poisoned,
                // An output that no run has written yet.
                Err(error) if is_no_value(&error) && tensor.direction == Direction::Out => {}
                Err(error) => return Err(format!("reading `{}` after the failure: {error}", tensor.name)),
            }
        }
        let ended = self.fault.is_some_and(|(_, fault)| fault == Fault::End);
        let has_resident_output = self
            .prepared
            .tensors
            .iter()
            .any(|tensor| tensor.direction.writes() && session.resident(tensor.name).is_some());
        if self.second.is_none() && (outcome == Outcome::Poisoned) != (ended && has_resident_output) {
            return Err(format!("after the failure: {outcome:?}"));
        }
        Ok(outcome)
    }

    /// A run after one that failed. If something is poisoned it is refused until that is written again, as a caller would.
    fn run_again(self, device: &Device, session: &mut Session<'_>) -> Result<Outcome, String> {
        let mut outcome = Outcome::Failed;
        if self.look {
            self.assert_inputs(session)?;
            outcome = self.poisoned(session)?;
        }
        if let Err(error) = session.run() {
            if !is_poisoned(&error) {
                return Err(format!("the next run: {error}"));
            }
            outcome = Outcome::Refused;
            for tensor in self.prepared.tensors.iter().filter(|tensor| tensor.direction.writes()) {
                if let Some(resident) = session.resident(tensor.name) {
                    let written = device.write_tensor(resident, &tensor.host);
                    written.map_err(|error| format!("writing `{}` again: {error}", tensor.name))?;
                }
            }
            session.run().map_err(|error| format!("the run after writing again: {error}"))?;
        }
        check(session).map_err(|wrong| format!("the next run: {wrong}"))?;
        Ok(outcome)
    }

    /// Nothing is left on the device but what the fault itself left there: memory that was not freed, or (a mapping
    /// may still exist, so its memory is quarantined) not unmapped. A window that does not close keeps its mapping.
    fn assert_balance(self, hal: &Faulty) -> Result<(), String> {
        let failed = hal.failed();
        let count = |ops: &[DeviceOp]| failed.iter().filter(|op| ops.contains(op)).count() as u64;
        let mappings = count(&[DeviceOp::Unmap, DeviceOp::CloseWindow]);
        let most = (mappings + count(&[DeviceOp::Free]), mappings);
        let kept = match self.fault {
            Some((_, fault)) if fault.is(DeviceOp::Free) => (1, 0),
            Some((_, fault)) if fault.is(DeviceOp::Unmap) => (1, 1),
            Some((Phase::Drop, fault)) if fault.is(DeviceOp::CloseWindow) => (1, 1),
            _ => (0, 0),
        };
        let counters = hal.counters();
        let left = (counters.allocs - counters.frees, counters.maps - counters.unmaps);
        // Of two faults the second may not have come, or have been made good later.
        let right = if self.second.is_some() { left.0 <= most.0 && left.1 <= most.1 } else { left == kept };
        if !right {
            return Err(format!("left (allocations, mappings): {left:?}, failed: {failed:?}"));
        }
        Ok(())
    }

    /// What to try of a phase with so many calls of each kind.
    fn with_faults(self, phase: Phase, kinds: &[(DeviceOp, usize)], pushes: bool) -> Vec<Try> {
        let mut faults: Vec<Fault> =
            kinds.iter().flat_map(|&(op, count)| (1..=count).map(move |n| Fault::Call(op, n))).collect();
        faults.extend(pushes.then_some(Fault::Push));
        faults.extend(kinds.iter().any(|(op, _)| *op == DeviceOp::Launch).then_some(Fault::End));
        let mut seconds = vec![None];
        if long() {
            seconds.extend(OPS.iter().flat_map(|&op| [Some((op, 1)), Some((op, 2))]));
        }
        let mut tries = Vec::new();
        for fault in faults {
            for &second in &seconds {
                // Without a run to fail there is nothing to look at after it.
                let looks: &[bool] =
                    if [Phase::Cold, Phase::Warm].contains(&phase) { &[false, true] } else { &[false] };
                tries.extend(looks.iter().map(|&look| Try { fault: Some((phase, fault)), second, look, ..self }));
            }
        }
        tries
    }

    /// The same, where a panic is wrong too.
    fn go_caught(self) -> Result<(Outcome, Counts), String> {
        let panicked = |_| Err("a panic (its message is above)".into());
        catch_unwind(AssertUnwindSafe(|| self.go()))
            .unwrap_or_else(panicked)
            .map_err(|wrong| format!("{self}: {wrong}"))
    }
}

/// Whether to try pairs too, which takes minutes.
fn long() -> bool {
    std::env::var("PERISCOPE_LONG").is_ok_and(|value| value != "0")
}

fn every_call_fails_once(workload: &str, case: &str, name: &'static str) {
    let prepared: &'static Prepared =
        Box::leak(Box::new(find(workload).unwrap().prepare(case, 7, &NoProgress).unwrap()));
    let (mut tried, mut known) = (0, 0);
    let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for uri in PROFILES {
        for residency in Residency::ALL {
            let plain = Try { name, prepared, uri, residency, fault: None, second: None, look: false };
            let (_, counts) = plain.go_caught().unwrap();
            assert_eq!(counts.iter().map(|(phase, ..)| *phase).collect::<Vec<_>>(), PHASES);
            for attempt in counts.iter().flat_map(|(phase, kinds, pushes)| plain.with_faults(*phase, kinds, *pushes)) {
                if KNOWN.iter().any(|(known, _)| *known == attempt.to_string()) {
                    known += 1;
                    continue;
                }
                tried += 1;
                match attempt.go_caught() {
                    Ok((outcome, _)) => *outcomes.entry(outcome).or_default() += 1,
                    Err(text) => wrong.push(text),
                }
            }
        }
    }
    println!(
        "{name}: {tried} (profile, residency, phase, kind, n, read before the next run) tried, {known} known and left out: {outcomes:?}"
    );
    assert!(tried > 0, "{name}: nothing was tried");
    let shown = wrong.iter().take(40).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {tried} went wrong:\n{shown}", wrong.len());
}

#[test]
fn paged_attention_small1_survives_each_fault() {
    every_call_fails_once("paged_attention", "small1", "paged_attention small1");
}

#[test]
fn paged_attention_small2_survives_each_fault() {
    every_call_fails_once("paged_attention", "small2", "paged_attention small2");
}

#[test]
fn vector_add_survives_each_fault() {
    every_call_fails_once("vector_add", "default", "vector_add");
}

#[test]
fn scalar_data_survives_each_fault() {
    every_call_fails_once("scalar_data", "default", "scalar_data");
}
