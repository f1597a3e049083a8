//! What was done for an order, and when that is one order carried out again.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::agent::{Agent, Reach, pay};
use super::wire::{Answer, Client};
use super::world::World;
use crate::lineage::conversation::{Alike, Done, Order, again};
use crate::words::{EffectId, Grade, Seq};

/// An agent whose tools were told to make these calls, and have not.
fn told(
    world: &mut World,
    client: Client,
    reach: Reach,
    calls: &[(&str, Value)],
) -> (Agent, Answer) {
    let mut agent = Agent::new(client, 10);
    agent.reach = reach;
    agent.say("do it");
    let asked = agent.ask(world);
    let answer = agent.answer_of(None, calls);
    agent.take(world, &asked, &answer);
    (agent, answer)
}

/// Runs a call again; what was done for its order before.
fn run(world: &mut World, agent: &Agent, answer: &Answer, call: usize) -> (EffectId, Vec<Order>) {
    let (effect, _) = agent.run(world, &answer.calls[call]);
    (effect, world.placed[&effect].orders.clone())
}

fn order(meant: usize, by_id: bool, done: &[EffectId]) -> Vec<Order> {
    let done = done.iter().map(|&effect| Done { effect, by_id });
    vec![Order {
        meant,
        done: done.collect(),
    }]
}

#[test]
fn by_the_model_s_id_a_call_is_known_to_be_done() {
    for client in [Client::ClaudeCode, Client::Codex] {
        let mut world = World::new();
        let calls = [pay("alice", 1), pay("bob", 2)];
        let (agent, answer) = told(&mut world, client, Reach::Mcp, &calls);
        let (first, none) = run(&mut world, &agent, &answer, 0);
        assert_eq!(none, [], "{client:?}");
        let (_, none) = run(&mut world, &agent, &answer, 1);
        assert_eq!(none, [], "{client:?}");
        let (_, orders) = run(&mut world, &agent, &answer, 0);
        assert_eq!(orders, order(1, true, &[first]), "{client:?}");
        world.check();
    }
}

#[test]
fn without_one_it_is_known_by_what_is_in_it() {
    for reach in [Reach::Mcp, Reach::Http] {
        let mut world = World::new();
        let equal = || ("pay", json!({"to": "alice", "amount": 100}));
        let calls = [equal(), equal(), pay("bob", 2)];
        let (agent, answer) = told(&mut world, Client::ChatSdk, reach, &calls);
        let (one, _) = run(&mut world, &agent, &answer, 0);
        // Whether the second is the first's twin or the first again is told by how many there are.
        let (two, orders) = run(&mut world, &agent, &answer, 1);
        assert_eq!(orders, order(2, false, &[one]), "{reach:?}");
        let (_, orders) = run(&mut world, &agent, &answer, 0);
        assert_eq!(orders, order(2, false, &[one, two]), "{reach:?}");
        let (_, none) = run(&mut world, &agent, &answer, 2);
        assert_eq!(none, [], "{reach:?}");
        world.check();
    }
}

#[test]
fn a_model_that_is_asked_in_between_orders_anew() {
    let mut world = World::new();
    let (mut agent, answer) = told(&mut world, Client::ChatSdk, Reach::Http, &[pay("alice", 1)]);
    run(&mut world, &agent, &answer, 0);
    // Also where it is only asked once more, and has not answered.
    agent.ask(&mut world);
    let (_, none) = run(&mut world, &agent, &answer, 0);
    assert_eq!(none, []);
    // A call that was made before, under its id.
    let mut world = World::new();
    let (other, answer) = told(
        &mut world,
        Client::ClaudeCode,
        Reach::Mcp,
        &[pay("alice", 1)],
    );
    agent = other;
    agent.run_calls(&mut world, &answer);
    agent.talk(&mut world, "Done.");
    let (_, none) = run(&mut world, &agent, &answer, 0);
    assert_eq!(none, []);
}

#[test]
fn what_another_life_did_is_a_restore_and_no_order() {
    let mut world = World::new();
    let (agent, answer) = told(&mut world, Client::ChatSdk, Reach::Http, &[pay("alice", 1)]);
    run(&mut world, &agent, &answer, 0);
    let (effect, _) = agent.restored(11).run(&mut world, &answer.calls[0]);
    assert_eq!(world.again.len(), 1);
    assert!(world.placed.contains_key(&effect));
    // Once the line was moved, nothing is left for the rule of the same life.
    let (request, ..) = agent.request_of(&answer.calls[0]);
    assert!(
        world
            .placement(&agent.restored(11).who, &request)
            .is_some_and(|p| {
                let effects = p.orders.iter().flat_map(|o| &o.done);
                effects.map(|d| d.effect).all(|e| e == effect)
            })
    );
}

#[test]
fn journals_of_before_this_was_kept_are_read() {
    fn older(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("target");
                fields.remove("times");
                fields.values_mut().for_each(older);
            }
            Value::Array(items) => items.iter_mut().for_each(older),
            _ => {}
        }
    }
    let mut world = World::new();
    let call = ("pay", json!({"to": "alice", "amount": 100, "count": 2}));
    let (agent, answer) = told(&mut world, Client::ChatSdk, Reach::Http, &[call]);
    run(&mut world, &agent, &answer, 0);
    let mut again = World::new();
    for delta in &world.deltas {
        let mut old = serde_json::to_value(delta).unwrap();
        older(&mut old);
        again.all.apply(&serde_json::from_value(old).unwrap());
    }
    // Nothing is found of what they do not tell.
    let (request, ..) = agent.request_of(&answer.calls[0]);
    let place = |world: &World| world.placement(&agent.who, &request).unwrap();
    assert_eq!(place(&again).orders, []);
    // The request says by itself how many, so it is one.
    assert_eq!(place(&world).orders[0].meant, 1);
}

fn alike() -> impl Strategy<Value = Vec<Alike>> {
    let one = (0..6_u64, any::<bool>(), prop::bool::weighted(0.8));
    prop::collection::vec(one, 0..6).prop_map(|all| {
        let mut alike: Vec<Alike> = all
            .into_iter()
            .map(|(effect, completed, made_anew)| Alike {
                effect: EffectId(Seq(effect)),
                completed,
                made_anew,
            })
            .collect();
        alike.sort_by_key(|a| a.effect);
        alike.dedup_by_key(|a| a.effect);
        alike
    })
}

fn any_orders() -> impl Strategy<Value = Vec<Order>> {
    let order = (
        1..4_usize,
        prop::collection::btree_map(0..6_u64, prop::bool::weighted(0.2), 1..5),
    );
    prop::collection::vec(order, 0..3).prop_map(|orders| {
        let mut seen = std::collections::BTreeSet::new();
        let orders = orders.into_iter().map(|(meant, done)| Order {
            meant,
            // An effect belongs to one order.
            done: done
                .into_iter()
                .filter(|(effect, _)| seen.insert(*effect))
                .map(|(effect, by_id)| Done {
                    effect: EffectId(Seq(effect)),
                    by_id,
                })
                .collect(),
        });
        orders.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The evidence that each grade needs, one by one; and where it is all there, the finding.
    #[test]
    fn nothing_is_found_without_its_evidence(orders in any_orders(), alike in alike()) {
        let found = again(&orders, &alike);
        let of = |effect| alike.iter().find(|a| a.effect == effect);
        let certain = |order: &Order| {
            order.done.iter().any(|d| d.by_id && of(d.effect).is_some_and(|a| a.completed))
        };
        for (effect, grade) in &found {
            let like = of(*effect).unwrap();
            prop_assert!(like.completed);
            let order = orders.iter().find(|o| o.done.iter().any(|d| d.effect == *effect)).unwrap();
            match grade {
                Grade::Certain => prop_assert!(order.done.iter().any(|d| d.effect == *effect && d.by_id)),
                Grade::Suspect => {
                    prop_assert!(alike.iter().all(|a| a.made_anew), "a retry under the same key");
                    let done = order.done.iter().filter(|d| of(d.effect).is_some()).count();
                    prop_assert!(done >= order.meant, "not all that was ordered was done");
                    prop_assert!(!orders.iter().any(certain));
                }
            }
        }
        if orders.iter().any(certain) {
            prop_assert!(found.iter().any(|(_, grade)| *grade == Grade::Certain));
        } else if alike.iter().all(|a| a.made_anew) {
            for order in &orders {
                let done: Vec<_> = order.done.iter().filter_map(|d| of(d.effect)).collect();
                if done.len() >= order.meant {
                    for a in done.iter().filter(|a| a.completed) {
                        prop_assert!(found.contains(&(a.effect, Grade::Suspect)));
                    }
                }
            }
        }
    }
}
