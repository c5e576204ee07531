package service

import "github.com/fairway-net/fairway/internal/api"

// claims say which entries claim a key, and which entry has it. Nearly always one entry claims a key. Each operation
// costs the same for any number of claims, except the removal of the entry that has the key.
type claims[K comparable] struct {
	owners  map[K]*Entry              // the entry that has a key
	several map[K]map[api.Name]*Entry // all entries that claim a key, if there are several
	before  func(k K, a, b *Entry) bool
}

func newClaims[K comparable](before func(k K, a, b *Entry) bool) claims[K] {
	return claims[K]{owners: map[K]*Entry{}, several: map[K]map[api.Name]*Entry{}, before: before}
}

// set notes that e claims k, in place of an earlier entry of the same Service. It reports whether the key now belongs
// to another Service.
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

// remove removes the claim of the entry of that name. It reports whether the key now belongs to another Service, or to
// no Service.
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

// elect gives k to the first of the entries that claim it, and reports whether this is another Service.
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

// each calls f with the name of every entry that claims k.
func (c *claims[K]) each(k K, f func(api.Name)) {
	if e := c.owners[k]; e != nil {
		f(e.Name)
	}
	for n := range c.several[k] {
		f(n)
	}
}
