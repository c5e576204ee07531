package plan

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/dns/names"
)

// Policies.
const (
	Sync       = "sync"        // names without an object are removed
	UpsertOnly = "upsert-only" // no name is removed
)

// Config is what the user sets.
type Config struct {
	Registry
	Policy  string
	Domains []Filter // a name must match all
	TTL     uint32   // of records whose object sets none
	// RemoveUnlisted removes names even if the cluster has no name at all, or does not list their kind of object.
	RemoveUnlisted bool
}

// An Input is what the cluster wants and what the server has.
type Input struct {
	Wants    []Want
	Existing []Set
	Zones    []string        // the zones of the server; empty: unknown
	Names    int             // the number of records that the cluster wants, also of those that the server does not take
	Listed   map[string]bool // the kinds of objects, in lower case, that the cluster lists
}

// An Action is the kind of a change.
type Action string

// The actions.
const (
	Create Action = "create"
	Update Action = "update"
	Delete Action = "delete"
)

// A Change replaces the records of a name and type, and the TXT record with the owner. Sets without values stand for no
// records. Values of OldTXT that are not in NewTXT are removed.
type Change struct {
	Action         Action
	Old, New       Set
	OldTXT, NewTXT Set
	Why            string
}

// Set returns the new records, or the removed ones.
func (c Change) Set() Set {
	if c.Action == Delete {
		return c.Old
	}
	return c.New
}

// String returns a line: "create www.example.org A 192.0.2.1: Service prod/web has the name".
func (c Change) String() string {
	text := string(c.Action) + " " + c.Set().String()
	if c.Action == Update && !slices.Equal(c.Old.Values, c.New.Values) {
		text += fmt.Sprintf(" (was %s)", strings.Join(c.Old.Values, ","))
	}
	return text + ": " + c.Why
}

// A Skip is a wanted set that is not written.
type Skip struct {
	Want
	Why string
}

// String returns a line as that of a Change.
func (s Skip) String() string { return "skip " + s.Set.String() + ": " + s.Why }

// ReasonNotWritten is the reason of events about Skips.
const ReasonNotWritten = "NameNotWritten"

// A Plan is what to do. Changes of one name follow each other, removals first: a server adds nothing next to a CNAME
// record.
type Plan struct {
	Changes []Change
	Skipped []Skip
	// Held are our records that no object wants, and that stay because the cluster may show too little.
	Held   []Set
	Owned, // our records on the server
	Foreign int // records of others with the types of ours
}

// WriteTo writes a line for each part of the plan, and a summary.
func (p Plan) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	n := map[Action]int{}
	for _, c := range p.Changes {
		n[c.Action]++
		fmt.Fprintln(&b, c)
	}
	for _, s := range p.Skipped {
		fmt.Fprintln(&b, s)
	}
	for _, s := range p.Held {
		fmt.Fprintf(&b, "hold %v: no object has the name, but the cluster shows no name, or does not list this kind of object [--remove-unlisted removes it]\n", s)
	}
	fmt.Fprintf(&b, "%d to create, %d to update, %d to delete; %d skipped, %d held; %d records are ours, %d of others\n",
		n[Create], n[Update], n[Delete], len(p.Skipped), len(p.Held), p.Owned, p.Foreign)
	written, err := io.WriteString(w, b.String())
	return int64(written), err
}

// New makes a plan.
func New(cfg Config, in Input) Plan {
	b := &builder{cfg: cfg, in: in, sets: map[string]map[string]Set{}, wants: map[string]map[string]Want{}, txtNames: map[string]bool{}}
	for _, s := range in.Existing {
		put(b.sets, s.Name, s.Type, s)
	}
	for _, w := range in.Wants {
		if b.inside(w.Name) {
			put(b.wants, w.Name, w.Type, w)
			b.txtNames[cfg.TXTName(w.Name, w.Type)] = true
		}
	}
	all := maps.Clone(b.wants)
	for name := range b.sets {
		if b.inside(name) {
			all[name] = b.wants[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.name(name)
	}
	return b.plan
}

func put[V any](m map[string]map[string]V, name, kind string, v V) {
	if m[name] == nil {
		m[name] = map[string]V{}
	}
	m[name][kind] = v
}

// A builder makes one plan.
type builder struct {
	cfg      Config
	in       Input
	sets     map[string]map[string]Set  // by name and type
	wants    map[string]map[string]Want // by name and type
	txtNames map[string]bool            // of the wanted records
	plan     Plan
}

// inside reports whether a name is in a zone and matches the filters.
func (b *builder) inside(name string) bool {
	return b.inZone(name) && !slices.ContainsFunc(b.cfg.Domains, func(f Filter) bool { return !f.Match(name) })
}

func (b *builder) inZone(name string) bool { return len(b.in.Zones) == 0 || b.zone(name) != "" }

// zone returns the longest zone of a name; empty: none.
func (b *builder) zone(name string) (longest string) {
	for _, z := range b.in.Zones {
		if names.Inside(name, z) && len(z) > len(longest) {
			longest = z
		}
	}
	return longest
}

// owner returns the owner of a record, and the TXT records at the name of the owner's record.
func (b *builder) owner(name, kind string) (o ownership, txt Set, ok bool) {
	at := b.cfg.TXTName(name, kind)
	txt, found := b.sets[at][typeTXT]
	if !found || b.cfg.ambiguous(name) {
		return ownership{}, Set{Name: at, Type: typeTXT}, false
	}
	o, ok = ownerOf(txt)
	return o, txt, ok
}

// name decides about a name.
func (b *builder) name(name string) {
	why, first := b.obstacle(name), len(b.plan.Changes)
	for _, kind := range Types {
		current, exists := b.sets[name][kind]
		want, wanted := b.wants[name][kind]
		o, txt, owned := b.owner(name, kind)
		mine := owned && o.owner == b.cfg.Owner && current.exists()
		switch {
		case exists && !mine:
			b.plan.Foreign++
		case exists:
			b.plan.Owned++
		}
		switch {
		case wanted && exists && mine:
			b.update(want, current, txt)
		case wanted && !exists && why == "":
			b.create(want, txt)
		case wanted:
			b.plan.Skipped = append(b.plan.Skipped, Skip{want, why})
		case exists && mine && why == "":
			b.remove(current, txt, o)
		}
	}
	order := map[Action]int{Delete: -1}
	slices.SortStableFunc(b.plan.Changes[first:], func(x, y Change) int { return cmp.Compare(order[x.Action], order[y.Action]) })
}

// harmless are types of records that each name of a signed zone has, next to a CNAME too.
var harmless = []string{"RRSIG", "NSEC", "NSEC3"}

// obstacle returns why no record can be added to a name; empty: nothing prevents it.
func (b *builder) obstacle(name string) string {
	wants := b.wants[name]
	_, alias := wants["CNAME"]
	for _, kind := range slices.Sorted(maps.Keys(wants)) {
		if why := b.txtObstacle(name, kind); why != "" {
			return why
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(b.sets[name])) {
		if slices.Contains(Types, kind) {
			if o, _, owned := b.owner(name, kind); !owned || !b.sets[name][kind].exists() {
				return fmt.Sprintf("the name has a record %s without an owner [remove the record, or choose another name]", kind)
			} else if o.owner != b.cfg.Owner {
				return fmt.Sprintf("the name has a record %s of the owner %s [choose another name]", kind, o.owner)
			}
		} else if alias && !slices.Contains(harmless, kind) {
			return fmt.Sprintf("the name has a record %s, and a CNAME record must be alone", kind)
		}
	}
	if alias && b.txtNames[name] {
		return "the name is that of a TXT record with an owner, and a CNAME record must be alone [choose another name]"
	}
	zone := b.zone(name)
	for at := name; zone != "" && at != zone; _, at, _ = strings.Cut(at, ".") {
		if b.sets[at]["NS"].Type != "" {
			return fmt.Sprintf("the zone %s delegates %s to other nameservers", zone, at)
		}
	}
	return ""
}

// txtObstacle returns why the owner of a record cannot be written.
func (b *builder) txtObstacle(name, kind string) string {
	o, txt, owned := b.owner(name, kind)
	_, alias := b.sets[txt.Name]["CNAME"]
	switch {
	case b.cfg.ambiguous(name):
		return fmt.Sprintf("the label %s stands for * in TXT records [choose another name, or another --txt-wildcard-replacement]", b.cfg.Wildcard)
	case !b.inZone(txt.Name):
		return fmt.Sprintf("the TXT record %s with the owner would be in no zone [set --txt-prefix %s-owner.]", txt.Name, recordType)
	case alias:
		return fmt.Sprintf("%s, the name of the TXT record with the owner, has a CNAME record", txt.Name)
	case owned && o.owner != b.cfg.Owner:
		return fmt.Sprintf("the TXT record %s names the owner %s [remove the record if this owner is gone]", txt.Name, o.owner)
	}
	return ""
}

// create adds the records of a want.
func (b *builder) create(want Want, txt Set) {
	next := want.Set
	next.TTL = cmp.Or(next.TTL, b.cfg.TTL)
	b.change(Change{Action: Create, New: next, Why: fmt.Sprintf("%v has the name", want.By)}, txt, want.By)
}

// update changes our records, if the want differs.
func (b *builder) update(want Want, current, txt Set) {
	next := want.Set
	next.TTL = cmp.Or(next.TTL, current.TTL)
	why := ""
	switch {
	case !slices.Equal(next.Values, current.Values):
		why = fmt.Sprintf("%v has other addresses now", want.By)
	case next.TTL != current.TTL:
		why = fmt.Sprintf("%v sets the TTL to %d", want.By, next.TTL)
	default:
		return
	}
	b.change(Change{Action: Update, Old: current, New: next, Why: why}, txt, want.By)
}

// change adds a change, with the TXT record of the owner. Texts that name no owner stay.
func (b *builder) change(c Change, txt Set, by names.Ref) {
	c.OldTXT = txt
	c.NewTXT = Set{Name: txt.Name, Type: typeTXT, TTL: c.New.TTL, Values: []string{b.cfg.text(by)}}
	for _, text := range txt.Values {
		if _, ok := parseOwnership(text); !ok {
			c.NewTXT.Values = append(c.NewTXT.Values, text)
		}
	}
	slices.Sort(c.NewTXT.Values)
	b.plan.Changes = append(b.plan.Changes, c)
}

// remove removes our records that no object wants. If the name has an object, records of other types follow it: the
// object has lost its IPv6 address, or has a host name now.
func (b *builder) remove(current, txt Set, o ownership) {
	c := Change{Action: Delete, Old: current, OldTXT: txt, NewTXT: Set{Name: txt.Name, Type: typeTXT, TTL: txt.TTL}}
	for _, text := range txt.Values {
		if _, ok := parseOwnership(text); !ok {
			c.NewTXT.Values = append(c.NewTXT.Values, text)
		}
	}
	switch {
	case len(b.wants[current.Name]) > 0:
		c.Why = "the object has other records now"
	case b.cfg.Policy != Sync:
		return
	case !b.cfg.RemoveUnlisted && (b.in.Names == 0 || !b.in.Listed[o.kind()]):
		b.plan.Held = append(b.plan.Held, current)
		return
	default:
		c.Why = fmt.Sprintf("no object has the name; it was of %s", cmp.Or(o.resource, "an object without a name"))
	}
	b.plan.Changes = append(b.plan.Changes, c)
}
