package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// An Entry is a name with its owner's addresses.
type Entry struct {
	Name      string
	Owner     Ref // the oldest object
	Addresses []netip.Addr
	Targets   []string
	TTL       uint32 // the smallest of all objects; 0: the default
}

// Decide gives each name to the namespace of its oldest object. Younger objects of that namespace add their addresses. A
// younger object of another namespace adds nothing, and gets a Problem if it has addresses that the name does not have.
func Decide(claims []Claim) (entries map[string]*Entry, problems []Problem) {
	entries = map[string]*Entry{}
	for _, c := range claims {
		e := entries[c.Name]
		if e == nil {
			e = &Entry{Name: c.Name, Owner: c.By}
			entries[c.Name] = e
		}
		if e.Owner.Namespace == c.By.Namespace {
			e.add(c)
		}
	}
	for _, c := range claims {
		e := entries[c.Name]
		if e.Owner.Namespace == c.By.Namespace {
			continue
		}
		foreign := slices.ContainsFunc(c.Addresses, func(a netip.Addr) bool { return !slices.Contains(e.Addresses, a) }) ||
			slices.ContainsFunc(c.Targets, func(t string) bool { return !slices.Contains(e.Targets, t) })
		if foreign {
			problems = append(problems, Problem{c.By, ReasonTaken, fmt.Sprintf("%s does not lead here: an older object of namespace %s has the name [choose another name, or delete the older object]", c.Name, e.Owner.Namespace)})
		}
	}
	for _, e := range entries {
		slices.SortFunc(e.Addresses, netip.Addr.Compare)
		slices.Sort(e.Targets)
	}
	return entries, problems
}

// add adds a claim of the owner's namespace.
func (e *Entry) add(c Claim) {
	for _, a := range c.Addresses {
		if !slices.Contains(e.Addresses, a) && len(e.Addresses) < AddressesPerName {
			e.Addresses = append(e.Addresses, a)
		}
	}
	for _, t := range c.Targets {
		if !slices.Contains(e.Targets, t) && len(e.Targets) < AddressesPerName {
			e.Targets = append(e.Targets, t)
		}
	}
	if c.TTL != 0 && (e.TTL == 0 || c.TTL < e.TTL) {
		e.TTL = c.TTL
	}
}

// Inside reports whether a name is a zone, or below it.
func Inside(name, zone string) bool {
	return name == zone || strings.HasSuffix(name, "."+zone)
}
