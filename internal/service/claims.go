package service

import "github.com/fairway-net/fairway/internal/api"

// claims say which entries ask for a key, and which of them has it. Nearly always one
// entry asks. Every operation costs the same however many ask, but for one that takes the
// key from the entry that has it.
type claims[K comparable] struct {
	owners  map[K]*Entry              // the only entry that asks for a key, or the one of several that has it
	several map[K]map[api.Name]*Entry // all entries that ask for a key, where they are several
	before  func(k K, a, b *Entry) bool
}

func newClaims[K comparable](before func(k K, a, b *Entry) bool) claims[K] {
	return claims[K]{owners: map[K]*Entry{}, several: map[K]map[api.Name]*Entry{}, before: before}
}

// set notes that e asks for k, in place of an entry of its name if there was one. It
// reports whether another Service than before has the key now.
func (c *claims[K]) set(k K, e *Entry) bool {
	owner, all := c.owners[k], c.several[k]
	switch {
	case owner == nil:
		c.owners[k] = e
		return true
	case all == nil && owner.Name == e.Name:
		c.owners[k] = e
		return false
	case all == nil:
		all = map[api.Name]*Entry{owner.Name: owner}
		c.several[k] = all
	}
	all[e.Name] = e
	switch {
	case owner.Name == e.Name && !c.before(k, owner, e):
		c.owners[k] = e
		return false
	case owner.Name == e.Name:
		return c.elect(k, owner)
	case c.before(k, e, owner):
		c.owners[k] = e
		return true
	}
	return false
}

// remove takes back what the entry of that name asks for, and reports whether another
// Service than before has the key now, or none.
func (c *claims[K]) remove(k K, n api.Name) bool {
	owner, all := c.owners[k], c.several[k]
	if all == nil {
		if owner == nil || owner.Name != n {
			return false
		}
		delete(c.owners, k)
		return true
	}
	delete(all, n)
	changed := owner.Name == n && c.elect(k, owner)
	if len(all) == 1 {
		delete(c.several, k)
	}
	return changed
}

// elect gives k to the first of those that ask for it.
func (c *claims[K]) elect(k K, was *Entry) bool {
	var first *Entry
	for _, e := range c.several[k] {
		if first == nil || c.before(k, e, first) {
			first = e
		}
	}
	c.owners[k] = first
	return first.Name != was.Name
}

// each calls f with the name of every entry that asks for k.
func (c *claims[K]) each(k K, f func(api.Name)) {
	if e := c.owners[k]; e != nil {
		f(e.Name)
	}
	for n := range c.several[k] {
		f(n)
	}
}
