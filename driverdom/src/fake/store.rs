//! The tree of xenstore with owners, readers, quotas, watches and transactions.

use std::collections::{BTreeMap, VecDeque};

use xen_proto::DomId;

/// An error as it goes over the wire.
pub type Errno = &'static str;

/// The toolstack's domain: it may do everything and has no quota.
const DOM0: DomId = DomId(0);

/// Whose behaviour is shown where xenstoreds differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// The one in C: each node that goes with a removed one has its own event.
    C,
    /// oxenstored: one event for the removed node, and one for each watch below it.
    Oxenstored,
}

/// Quotas of an unprivileged domain; the defaults are those of xenstored 4.17.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Nodes that it owns.
    pub nodes: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Watches.
    pub watches: usize,
    /// Open transactions.
    pub transactions: usize,
    /// Requests without a reply.
    pub outstanding: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { nodes: 1000, value: 2048, watches: 128, transactions: 10, outstanding: 20 }
    }
}

#[derive(Clone, Debug)]
struct Node {
    value: Vec<u8>,
    owner: DomId,
    readers: Vec<DomId>,
    generation: u64,
}

#[derive(Debug)]
struct Watch {
    owner: DomId,
    path: String,
    token: String,
    /// Bytes to cut from the front of events' paths.
    cut: usize,
}

#[derive(Debug)]
struct Transaction {
    owner: DomId,
    /// Generations of what was looked at.
    looked_at: BTreeMap<String, Option<u64>>,
    /// What it did so far: none is a removed node.
    changed: BTreeMap<String, Option<Node>>,
    /// What to tell watchers when it takes effect.
    events: Vec<Notice>,
}

/// A node that changed, with those who may read of it.
#[derive(Clone, Debug)]
struct Notice {
    path: String,
    node: Node,
    removed_with_parent: bool,
}

/// The store.
pub struct Store {
    /// Whose behaviour.
    pub flavour: Flavour,
    /// Quotas.
    pub limits: Limits,
    /// So many commits of unprivileged domains fail with EAGAIN whatever they did.
    pub conflicts_to_come: usize,
    nodes: BTreeMap<String, Node>,
    owned: BTreeMap<DomId, usize>,
    generation: u64,
    watches: Vec<Watch>,
    transactions: BTreeMap<u32, Transaction>,
    next_transaction: u32,
    events: BTreeMap<DomId, VecDeque<(String, String)>>,
}

impl Store {
    /// A store with nothing but what the toolstack makes for these domains.
    pub fn new(domains: impl IntoIterator<Item = DomId>) -> Self {
        let mut store = Self {
            flavour: Flavour::C,
            limits: Limits::default(),
            conflicts_to_come: 0,
            nodes: BTreeMap::new(),
            owned: BTreeMap::new(),
            generation: 0,
            watches: Vec::new(),
            transactions: BTreeMap::new(),
            // In the middle of a long life, so that all ids are of one length.
            next_transaction: 100_000,
            events: BTreeMap::new(),
        };
        store.put("/local/domain", store.node(DOM0, &[], b""));
        domains.into_iter().for_each(|domain| store.make_domain(domain));
        store
    }

    /// Makes a domain's home, as libxl does.
    pub fn make_domain(&mut self, domain: DomId) {
        let home = format!("/local/domain/{domain}");
        self.put(&home, self.node(DOM0, &[domain], b""));
        for directory in ["device", "device/vbd", "control", "backend"] {
            self.put(&format!("{home}/{directory}"), self.node(DOM0, &[domain], b""));
        }
        for directory in ["data", "error", "control/shutdown", "control/sysrq"] {
            self.put(&format!("{home}/{directory}"), self.node(domain, &[], b""));
        }
    }

    /// The value of a node.
    pub fn read(&mut self, by: DomId, within: u32, path: &str) -> Result<Vec<u8>, Errno> {
        let node = self.get(by, within, path)?;
        let node = node.ok_or_else(|| self.missing(by, path))?;
        if may_read(by, &node) { Ok(node.value) } else { Err("EACCES") }
    }

    /// A node's value as text, for the toolstack.
    pub fn text(&mut self, path: &str) -> Option<String> {
        self.read(DOM0, 0, path).ok().map(|value| String::from_utf8(value).expect("text"))
    }

    /// Names of a node's children.
    pub fn directory(&mut self, by: DomId, within: u32, path: &str) -> Result<Vec<String>, Errno> {
        self.read(by, within, path)?;
        let prefix = format!("{path}/");
        let mut names: Vec<String> = Vec::new();
        for (path, _) in self.nodes.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix)) {
            let name = path[prefix.len()..].split('/').next().expect("a name");
            if names.last().is_none_or(|last| last != name) {
                names.push(name.into());
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Sets a node's value and makes what is missing of it.
    pub fn write(&mut self, by: DomId, within: u32, path: &str, value: &[u8]) -> Result<(), Errno> {
        assert!(path.starts_with('/') && !path.ends_with('/') && !path.contains("//"), "{path:?} is no path");
        if by != DOM0 && value.len() > self.limits.value {
            return Err("ENOSPC");
        }
        let node = match self.get(by, within, path)? {
            Some(node) if !may_write(by, &node) => return Err("EACCES"),
            Some(node) => Node { value: value.to_vec(), ..node },
            None => {
                let parent = self.make_parents(by, within, path)?;
                Node { value: value.to_vec(), ..self.child_of(by, parent) }
            }
        };
        self.set(by, within, path, node)?;
        Ok(())
    }

    /// Makes a node, if it is not there.
    pub fn mkdir(&mut self, by: DomId, within: u32, path: &str) -> Result<(), Errno> {
        if self.get(by, within, path)?.is_some() { Ok(()) } else { self.write(by, within, path, b"") }
    }

    /// Removes a node and all below it.
    pub fn rm(&mut self, by: DomId, within: u32, path: &str) -> Result<(), Errno> {
        let Some(node) = self.get(by, within, path)? else {
            let parent = parent(path);
            return match self.get(by, within, parent)? {
                Some(_) => Ok(()),
                None => Err(self.missing(by, path)),
            };
        };
        if !may_write(by, &node) {
            return Err("EACCES");
        }
        // Its name is taken out of its parent's list.
        self.get(by, within, parent(path))?;
        let below = format!("{path}/");
        let gone: Vec<String> = self
            .nodes
            .range(below.clone()..)
            .map(|(path, _)| path.clone())
            .take_while(|path| path.starts_with(&below))
            .collect();
        for path in core::iter::once(path.to_string()).chain(gone) {
            let removed_with_parent = path.len() >= below.len();
            if let Some(node) = self.get(by, within, &path)? {
                let notice = Notice { path: path.clone(), node, removed_with_parent };
                match self.transactions.get_mut(&within) {
                    Some(transaction) => {
                        transaction.changed.insert(path, None);
                        transaction.events.push(notice);
                    }
                    None => {
                        self.take(&path);
                        self.tell(&notice);
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives a node to `owner`, to be read by `reader`. For the toolstack.
    pub fn give(&mut self, path: &str, owner: DomId, reader: DomId) {
        let value = self.nodes.get(path).map(|node| node.value.clone()).unwrap_or_default();
        self.put(path, self.node(owner, &[reader], &value));
    }

    /// Removes a node and those above it that are empty then, up to the domain's home. For the toolstack.
    pub fn clean_up(&mut self, path: &str) {
        let mut path = path;
        while path.matches('/').count() > 4 {
            // It may be gone already, with its parent.
            self.rm(DOM0, 0, path).ok();
            path = parent(path);
            let below = format!("{path}/");
            if self.nodes.range(below.clone()..).next().is_some_and(|(path, _)| path.starts_with(&below)) {
                break;
            }
        }
    }

    /// Registers a watch; its first event is the path itself. (The real ones send it also for nodes that may not be read.)
    pub fn watch(&mut self, by: DomId, path: &str, given: &str, token: &str) -> Result<(), Errno> {
        if self
            .watches
            .iter()
            .any(|watch| (watch.owner, watch.path.as_str(), watch.token.as_str()) == (by, path, token))
        {
            return Err("EEXIST");
        }
        if by != DOM0 && self.watches_of(by) >= self.limits.watches {
            return Err("E2BIG");
        }
        self.watches.push(Watch { owner: by, path: path.into(), token: token.into(), cut: path.len() - given.len() });
        if self.nodes.get(path).is_none_or(|node| may_read(by, node)) {
            self.events.entry(by).or_default().push_back((given.into(), token.into()));
        }
        Ok(())
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, by: DomId, path: &str, token: &str) -> Result<(), Errno> {
        let is = |watch: &Watch| (watch.owner, watch.path.as_str(), watch.token.as_str()) == (by, path, token);
        let index = self.watches.iter().position(is).ok_or("ENOENT")?;
        self.watches.remove(index);
        Ok(())
    }

    /// Watches that a domain has.
    pub fn watches_of(&self, domain: DomId) -> usize {
        self.watches.iter().filter(|watch| watch.owner == domain).count()
    }

    /// Nodes that a domain owns.
    pub fn nodes_of(&self, domain: DomId) -> usize {
        self.owned.get(&domain).copied().unwrap_or(0)
    }

    /// All paths at and below a node.
    pub fn below(&self, path: &str) -> Vec<&str> {
        let is_below = |node: &&str| *node == path || node.starts_with(&format!("{path}/"));
        self.nodes.keys().map(String::as_str).filter(is_below).collect()
    }

    /// The next watch event of a domain: path and token.
    pub fn next_event(&mut self, domain: DomId) -> Option<(String, String)> {
        self.events.get_mut(&domain)?.pop_front()
    }

    /// Opens a transaction.
    pub fn start(&mut self, by: DomId) -> Result<u32, Errno> {
        if by != DOM0 && self.transactions.values().filter(|open| open.owner == by).count() >= self.limits.transactions
        {
            return Err("E2BIG");
        }
        let id = self.next_transaction;
        self.next_transaction += 1;
        let transaction =
            Transaction { owner: by, looked_at: BTreeMap::new(), changed: BTreeMap::new(), events: Vec::new() };
        self.transactions.insert(id, transaction);
        Ok(id)
    }

    /// Ends a transaction: all of it takes effect, unless it is aborted or what it looked at has changed.
    pub fn end(&mut self, by: DomId, id: u32, commit: bool) -> Result<(), Errno> {
        let transaction =
            self.transactions.remove(&id).filter(|transaction| transaction.owner == by).ok_or("ENOENT")?;
        if !commit {
            return Ok(());
        }
        let unchanged =
            |(path, seen): (&String, &Option<u64>)| self.nodes.get(path).map(|node| node.generation) == *seen;
        if !transaction.looked_at.iter().all(unchanged) {
            return Err("EAGAIN");
        }
        if by != DOM0 && self.conflicts_to_come > 0 {
            self.conflicts_to_come -= 1;
            return Err("EAGAIN");
        }
        for (path, node) in transaction.changed {
            match node {
                Some(node) => self.put(&path, node),
                None => drop(self.take(&path)),
            }
        }
        transaction.events.iter().for_each(|notice| self.tell(notice));
        Ok(())
    }

    fn node(&self, owner: DomId, readers: &[DomId], value: &[u8]) -> Node {
        Node { value: value.to_vec(), owner, readers: readers.to_vec(), generation: 0 }
    }

    /// What a new node is like: it has its parent's permissions, and belongs to whoever made it, if that is not dom0.
    fn child_of(&self, by: DomId, parent: Node) -> Node {
        let owner = if by == DOM0 { parent.owner } else { by };
        Node { owner, value: Vec::new(), generation: 0, readers: parent.readers }
    }

    fn put(&mut self, path: &str, node: Node) {
        self.generation += 1;
        *self.owned.entry(node.owner).or_default() += 1;
        let node = Node { generation: self.generation, ..node };
        match self.nodes.insert(path.into(), node) {
            Some(before) => *self.owned.get_mut(&before.owner).expect("counted") -= 1,
            None => self.children_changed(path),
        }
    }

    /// A node's list of children is a part of it.
    fn children_changed(&mut self, path: &str) {
        self.generation += 1;
        let generation = self.generation;
        if let Some(node) = self.nodes.get_mut(parent(path)) {
            node.generation = generation;
        }
    }

    fn take(&mut self, path: &str) -> Option<Node> {
        let node = self.nodes.remove(path)?;
        *self.owned.get_mut(&node.owner).expect("counted") -= 1;
        self.children_changed(path);
        Some(node)
    }

    /// A node as a transaction sees it; that it was looked at is noted.
    fn get(&mut self, by: DomId, within: u32, path: &str) -> Result<Option<Node>, Errno> {
        let node = self.nodes.get(path);
        if within == 0 {
            return Ok(node.cloned());
        }
        let transaction = self.transactions.get_mut(&within).filter(|open| open.owner == by).ok_or("ENOENT")?;
        if let Some(changed) = transaction.changed.get(path) {
            return Ok(changed.clone());
        }
        transaction.looked_at.entry(path.into()).or_insert_with(|| node.map(|node| node.generation));
        Ok(node.cloned())
    }

    fn set(&mut self, by: DomId, within: u32, path: &str, node: Node) -> Result<(), Errno> {
        let notice = Notice { path: path.into(), node: node.clone(), removed_with_parent: false };
        self.insert(by, within, path, node)?;
        match self.transactions.get_mut(&within) {
            Some(transaction) => transaction.events.push(notice),
            None => self.tell(&notice),
        }
        Ok(())
    }

    fn insert(&mut self, by: DomId, within: u32, path: &str, node: Node) -> Result<(), Errno> {
        let new = self.get(by, within, path)?.is_none();
        let own = |node: &&Option<Node>| node.as_ref().is_some_and(|node| node.owner == by);
        let pending = self.transactions.get(&within).map_or(0, |open| open.changed.values().filter(own).count());
        if new && by != DOM0 && self.nodes_of(by) + pending >= self.limits.nodes {
            return Err("ENOSPC");
        }
        match self.transactions.get_mut(&within) {
            Some(transaction) => drop(transaction.changed.insert(path.into(), Some(node))),
            None => self.put(path, node),
        }
        Ok(())
    }

    /// Makes the nodes above a path; returns the one directly above. They have no events of their own.
    fn make_parents(&mut self, by: DomId, within: u32, path: &str) -> Result<Node, Errno> {
        let parent_path = parent(path);
        match self.get(by, within, parent_path)? {
            Some(parent) if may_write(by, &parent) => Ok(parent),
            Some(_) => Err("EACCES"),
            None if parent_path.is_empty() => Ok(self.node(DOM0, &[], b"")),
            None => {
                let above = self.make_parents(by, within, parent_path)?;
                let node = self.child_of(by, above);
                self.insert(by, within, parent_path, node.clone())?;
                Ok(node)
            }
        }
    }

    /// ENOENT for those who may read what is above the missing node, EACCES for others.
    fn missing(&self, by: DomId, path: &str) -> Errno {
        let mut path = parent(path);
        while !path.is_empty() {
            if let Some(node) = self.nodes.get(path) {
                return if may_read(by, node) { "ENOENT" } else { "EACCES" };
            }
            path = parent(path);
        }
        "EACCES"
    }

    fn tell(&mut self, notice: &Notice) {
        for watch in &self.watches {
            let covers = is_at_or_below(&notice.path, &watch.path);
            let path = match self.flavour {
                Flavour::C if covers => &notice.path,
                Flavour::Oxenstored if covers && !notice.removed_with_parent => &notice.path,
                Flavour::Oxenstored if notice.path == watch.path => &watch.path,
                _ => continue,
            };
            if may_read(watch.owner, &notice.node) {
                let path = path[watch.cut..].to_string();
                self.events.entry(watch.owner).or_default().push_back((path, watch.token.clone()));
            }
        }
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn is_at_or_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn may_read(by: DomId, node: &Node) -> bool {
    by == DOM0 || node.owner == by || node.readers.contains(&by)
}

fn may_write(by: DomId, node: &Node) -> bool {
    by == DOM0 || node.owner == by
}
