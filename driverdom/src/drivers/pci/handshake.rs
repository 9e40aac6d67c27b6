//! [`Front`] on the xenstore client that driverdom's parts share: requests go out, events come in, tasks are left to the loop.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use xen_proto::xenstore::{Client, Event, Payload, QueueError, RequestId};
use xen_proto::{DomId, GrantRef, Port};

use super::Address;
use super::front::{Action, Front, Input, WATCHED};

/// The token of our watches.
const TOKEN: &str = "pci";
/// The most requests of one action: two nodes a device.
const MOST_REQUESTS: usize = 64;

/// What the loop must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Grant a page and offer an event channel to this domain, then say so with [`Handshake::channel`].
    OpenChannel(DomId),
    /// The channel is of no more use: calls on it fail at once from now on.
    CloseChannel,
    /// A device is there: start its driver.
    Attach(Address),
    /// A device is being taken away: stop it, and say what becomes of it. What depends on it fails from now on.
    Detach(Address),
}

/// The front and what it has under way.
#[derive(Debug)]
pub struct Handshake {
    front: Front,
    /// What the front wants, in order.
    wanted: VecDeque<Action>,
    /// The nodes being read, in order.
    reading: Vec<Node>,
}

/// A node that is being read.
#[derive(Debug)]
enum Node {
    Asked(RequestId),
    /// Its value, or `None` if it cannot be read.
    Known(Option<Vec<u8>>),
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new()
    }
}

impl Handshake {
    /// A handshake that has said nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let wanted = VecDeque::from([Action::Watch(WATCHED.into())]);
        let mut handshake = Self { front: Front::new(), wanted, reading: Vec::new() };
        handshake.step(Input::Changed);
        handshake
    }

    /// Whether the devices that were there at the start are attached, or there are none.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.wanted.is_empty() && self.front.is_settled()
    }

    /// Takes an event of xenstore, if it is one of ours.
    ///
    /// # Errors
    /// The event: it is somebody else's.
    pub fn event(&mut self, event: Event) -> Result<(), Event> {
        match event {
            Event::Watch { token, .. } if token == TOKEN => self.step(Input::Changed),
            Event::Reply { request, result } => {
                let Some(node) = self.reading.iter_mut().find(|node| matches!(node, Node::Asked(id) if *id == request))
                else {
                    return Err(Event::Reply { request, result });
                };
                *node = Node::Known(match result {
                    Ok(Payload::Value(value)) => Some(value),
                    _ => None,
                });
                self.finish_reading();
            }
            other => return Err(other),
        }
        Ok(())
    }

    /// The channel that [`Task::OpenChannel`] asked for, or `None` if it could not be made.
    pub fn channel(&mut self, opened: Option<(GrantRef, Port)>) {
        self.step(opened.map_or(Input::ChannelFailed, |(gref, port)| Input::ChannelOpen { gref, port }));
    }

    /// Gives the client its requests up to the next task. To be called until there is none, at the start and after anything
    /// else was called here. The order matters: the back goes on as soon as it hears that a task is done.
    pub fn next(&mut self, client: &mut Client) -> Option<Task> {
        // Without room we come again later.
        while client.room() >= MOST_REQUESTS {
            let done = match self.wanted.pop_front()? {
                Action::OpenChannel(domain) => return Some(Task::OpenChannel(domain)),
                Action::CloseChannel => return Some(Task::CloseChannel),
                Action::Attach(address) => return Some(Task::Attach(address)),
                Action::Detach(address) => return Some(Task::Detach(address)),
                Action::Watch(path) => client.watch(&path, TOKEN).map(drop),
                Action::Unwatch(path) => client.unwatch(&path, TOKEN).map(drop),
                Action::Write(nodes) => write(client, &nodes),
                Action::Read(paths) => {
                    // A path that is none, made from what the back's domain wrote, is as good as a missing node.
                    let ask = |path: &String| client.read(None, path).map_or(Node::Known(None), Node::Asked);
                    self.reading = paths.iter().map(ask).collect();
                    self.finish_reading();
                    Ok(())
                }
            };
            if let Err(error) = done {
                log::error!("PCI: a request to xenstore was not taken: {error:?}");
            }
        }
        None
    }

    fn finish_reading(&mut self) {
        if self.reading.iter().all(|node| matches!(node, Node::Known(_))) {
            let value = |node| if let Node::Known(value) = node { value } else { None };
            let values = self.reading.drain(..).map(value).collect();
            self.step(Input::Values(values));
        }
    }

    fn step(&mut self, input: Input) {
        self.wanted.extend(self.front.step(input));
    }
}

fn write(client: &mut Client, nodes: &[(String, String)]) -> Result<(), QueueError> {
    nodes.iter().try_for_each(|(path, value)| client.write(None, path, value.as_bytes()).map(drop))
}

#[cfg(test)]
mod tests;
