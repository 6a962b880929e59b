use std::cell::Cell;

use super::*;
use crate::measure::pipeline::tests::{Server, Virtual, with_watch};
use crate::measure::schedule::Arrivals;
use crate::measure::{Spin, Stop};

fn pace(gap_ns: u64, arrivals: Arrivals) -> Pace {
    Pace { rate_per_s: 1e9 / gap_ns as f64, arrivals, seed: 7 }
}

fn run(server: &mut Server<'_>, depth: u32, pace: &Pace, stop: Stop) -> (OpenLoop, LatencyHistogram) {
    let mut histogram = LatencyHistogram::new();
    let time = Virtual(server.time);
    let seen = with_watch(|watch, clock| {
        initiate::<_, Spin, _, true>(server, time, clock, depth, pace, stop.into(), watch, &mut histogram)
    });
    (seen.unwrap(), histogram)
}

#[test]
fn a_stall_shows_in_every_message_that_was_due_in_the_meantime() {
    let time = Cell::new(0);
    let mut server = Server::new(&time, 100);
    // A message each 10 us; between 1 ms and 2 ms nothing is served.
    server.stalled = (1_000_000, 2_000_000);
    let pace = pace(10_000, Arrivals::Constant);
    let (seen, histogram) = run(&mut server, 1, &pace, Stop::Count(1000));
    assert_eq!((seen.posted, histogram.samples()), (1000, 1000));
    // One was under way, and 99 more were due: their latencies are 1 ms, 0.99 ms, 0.98 ms ... and all of them count.
    let at_least = |ns: u64| histogram.buckets().count_between(ns, u64::MAX / 2);
    for tenth in 1..10 {
        let expected = 100 - tenth * 10;
        let counted = at_least(tenth * 100_000);
        assert!(counted.abs_diff(expected) <= 2, "{counted} of {expected} over {tenth} tenths of the stall");
    }
    assert!(histogram.max().unwrap().abs_diff(1_000_000) < 1000, "{:?}", histogram.max());
    // Those that were posted more than a gap after they were due: all but the first few.
    assert!((95..=105).contains(&seen.late), "{}", seen.late);
    // The rest of the time it kept up.
    assert_eq!(seen.missed(pace.rate_per_s), None, "{seen:?}");
    // A closed loop at depth 1 hides it: one slow message of a thousand.
    let time = Cell::new(0);
    let mut server = Server::new(&time, 100);
    server.stalled = (50_000, 1_050_000);
    let mut closed = LatencyHistogram::new();
    with_watch(|watch, clock| {
        let limit = Stop::Count(1000).into();
        crate::measure::pipeline::initiate::<_, _, false>(
            &mut server,
            Virtual(&time),
            clock,
            1,
            limit,
            watch,
            &mut closed,
        )
        .unwrap();
    });
    assert_eq!(closed.buckets().count_between(100_000, u64::MAX / 2), 1);
}

#[test]
fn a_schedule_that_is_kept_is_achieved_as_offered() {
    for (arrivals, stop) in [
        (Arrivals::Constant, Stop::Count(2000)),
        (Arrivals::Poisson, Stop::Count(2000)),
        (Arrivals::Constant, Stop::After(Duration::from_millis(20))),
        (Arrivals::Poisson, Stop::After(Duration::from_millis(20))),
    ] {
        let time = Cell::new(0);
        let mut server = Server::new(&time, 2_000);
        let pace = pace(10_000, arrivals);
        let (seen, histogram) = run(&mut server, 64, &pace, stop);
        assert_eq!(seen.posted, histogram.samples());
        assert_eq!(seen.missed(pace.rate_per_s), None, "{arrivals:?} {stop:?} {seen:?}");
        let tolerated = if arrivals == Arrivals::Constant { 0.001 } else { 0.14 };
        let ratio = seen.achieved_per_s() / pace.rate_per_s;
        assert!((ratio - 1.0).abs() < tolerated, "{arrivals:?} {stop:?}: {ratio}");
        if arrivals == Arrivals::Constant {
            assert_eq!((seen.posted, seen.late), (if stop == Stop::Count(2000) { 2000 } else { 1999 }, 0));
            assert!(histogram.max().unwrap() < 2_100, "no queue: {:?}", histogram.max());
        } else {
            // M/D/1 at a load of a fifth waits 0.125 of a service on average.
            let mean = histogram.mean().unwrap();
            assert!((2_100.0..2_500.0).contains(&mean), "{mean}");
        }
    }
}

#[test]
fn more_than_can_be_served_is_a_missed_schedule() {
    for (gap, depth, stop) in [
        // Twice as much, far more, and as good as none over the capacity.
        (5_000, 1, Stop::Count(2000)),
        (5_000, 64, Stop::After(Duration::from_millis(20))),
        (10, 64, Stop::After(Duration::from_millis(20))),
        (10, 64, Stop::Count(500)),
        (9_960, 64, Stop::Count(5000)),
        // The backlog stays within what may be outstanding.
        (9_000, 512, Stop::Count(1000)),
    ] {
        let time = Cell::new(0);
        let mut server = Server::new(&time, 10_000);
        let pace = pace(gap, Arrivals::Constant);
        let (seen, histogram) = run(&mut server, depth, &pace, stop);
        assert_eq!(seen.posted, histogram.samples(), "what is under way is waited for");
        assert!(server.deepest <= depth as usize);
        let reason = seen.missed(pace.rate_per_s);
        let rates =
            [format!("offered {:.0}/s", pace.rate_per_s), format!("posted {:.0}/s", seen.achieved_per_s())];
        assert!(
            reason.as_ref().is_some_and(|reason| rates.iter().all(|rate| reason.contains(rate.as_str()))),
            "{gap} ns at depth {depth}: {seen:?} {reason:?}"
        );
        if let Stop::After(span) = stop {
            let over = time.get() - span.as_nanos() as u64;
            assert!(over < 10_000 * (u64::from(depth) + 1), "time ends a run whatever is still due: {over}");
        }
    }
}

#[test]
fn a_full_window_delays_a_message_but_not_the_moment_it_counts_from() {
    let time = Cell::new(0);
    let mut server = Server::new(&time, 1_000);
    // Poisson at nine tenths, one outstanding: the queue is at the sender.
    let (one, at_one) = run(&mut server, 1, &pace(1_111, Arrivals::Poisson), Stop::Count(20_000));
    let time = Cell::new(0);
    let mut server = Server::new(&time, 1_000);
    let (many, at_many) = run(&mut server, 512, &pace(1_111, Arrivals::Poisson), Stop::Count(20_000));
    let (here, there) = (at_one.mean().unwrap(), at_many.mean().unwrap());
    assert!((here / there - 1.0).abs() < 0.1, "the same queue wherever it stands: {here} and {there}");
    assert!(one.late > 10 * many.late.max(1), "{} and {}", one.late, many.late);
}

#[test]
fn a_trend_is_one_of_the_quarters_least() {
    let growth = |samples: &[u64], gap| {
        let mut trend = Trend::new();
        trend.add(samples);
        trend.growth(gap)
    };
    let rising: Vec<u64> = (0..1000).map(|i| 100 + i).collect();
    assert_eq!(growth(&rising, 10), Some((100, 852)));
    assert_eq!(growth(&rising, 800), None, "less than a gap");
    assert_eq!(growth(&rising[..15], 0), None, "too few");
    // One good message in the last quarter is enough.
    let mut caught_up = rising;
    caught_up[990] = 100;
    assert_eq!(growth(&caught_up, 10), None);
}
