package names

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
)

// Config says which zones are served.
type Config struct {
	Zones       []string // in lower case, without the dot at the end
	Nameservers []string // names in each zone, as dns.kube-system; the first is the primary of the SOA record
	TTL         uint32   // of records, in seconds
}

// A Record is a DNS record. Name has a dot at the end.
type Record struct {
	Name, Type string
	TTL        uint32
	Data       string
}

func (r Record) String() string { return fmt.Sprintf("%s %d %s %s", r.Name, r.TTL, r.Type, r.Data) }

// A Table is the records of all zones. It is immutable.
type Table struct {
	cfg    Config
	serial uint32
	zones  []zone // those with the longest names first
	memo   atomic.Pointer[memo]
}

// A zone has the records of its names, and for each name the number of longer names with records: a name exists if there
// is one. The zone itself always exists.
type zone struct {
	name    string
	records map[string][]Record // by the name without dot
	longer  map[string]int
}

// New makes the table of a cluster. The serial number is the previous table's if the records are the same, and else now
// or the next number, whichever is larger. previous may be nil. New reuses the previous table's parts, so a change costs
// what follows from it, and a look at each object. The caller does not change the parts of c later.
func New(c Cluster, cfg Config, previous *Table, now uint32) (*Table, []Problem) {
	m, t := newMemo(), &Table{cfg: cfg, serial: now}
	if previous != nil && previous.cfg.same(cfg) {
		t.zones = slices.Clone(previous.zones)
		if last := previous.memo.Swap(nil); last != nil {
			m = last
		}
	}
	known := len(m.count) > 0
	if !known {
		t.zones = cfg.empty()
	}
	changed := t.update(m.names, m.update(c, cfg))
	t.memo.Store(m)
	if previous != nil {
		t.serial = max(now, previous.serial+1)
		if known && !changed || !known && t.same(previous) {
			t.serial = previous.serial
		}
	}
	return t, m.problems()
}

// same reports whether two configurations are equal.
func (c Config) same(o Config) bool {
	return slices.Equal(c.Zones, o.Zones) && slices.Equal(c.Nameservers, o.Nameservers) && c.TTL == o.TTL
}

// empty returns the zones without records.
func (c Config) empty() (zones []zone) {
	for _, name := range c.Zones {
		zones = append(zones, zone{name: name, records: map[string][]Record{}, longer: map[string]int{name: 1}})
	}
	slices.SortFunc(zones, func(a, b zone) int { return cmp.Or(len(b.name)-len(a.name), cmp.Compare(a.name, b.name)) })
	return zones
}

// update sets the records of the names, and reports whether any differ from before. The table's zones may be those of
// another table, so update clones a zone before its first change.
func (t *Table) update(owners map[string]*owner, names map[string]bool) (changed bool) {
	cloned := map[*zone]bool{}
	for name := range names {
		z := t.zone(name)
		if z == nil {
			continue
		}
		var records []Record
		if o := owners[name]; o != nil {
			records = o.entry.records(t.cfg.TTL)
		}
		if slices.Equal(records, z.records[name]) {
			continue
		}
		changed = true
		if !cloned[z] {
			cloned[z] = true
			z.records, z.longer = maps.Clone(z.records), maps.Clone(z.longer)
		}
		z.set(name, records)
	}
	return changed
}

// reserve removes claims of other namespaces for the names of the nameservers: whoever has these answers for the zones.
func (c Config) reserve(claims []Claim) (left []Claim, problems []Problem) {
	reserved := map[string]string{} // the namespace of each name
	for _, zone := range c.Zones {
		for _, name := range c.Nameservers {
			_, namespace, _ := strings.Cut(name, ".")
			reserved[name+"."+zone] = namespace
		}
	}
	for _, one := range claims {
		if namespace, ok := reserved[one.Name]; ok && namespace != one.By.Namespace {
			problems = append(problems, Problem{one.By, ReasonTaken, one.Name + " does not lead here: it is a nameserver of the zone [choose another name]"})
			continue
		}
		left = append(left, one)
	}
	return left, problems
}

func (t *Table) same(o *Table) bool {
	return t.cfg.same(o.cfg) && slices.EqualFunc(t.zones, o.zones, func(a, b zone) bool {
		return maps.EqualFunc(a.records, b.records, slices.Equal[[]Record])
	})
}

// Zones returns the names of the zones.
func (t *Table) Zones() []string { return t.cfg.Zones }

// Len returns the number of names.
func (t *Table) Len() (n int) {
	for _, z := range t.zones {
		n += len(z.records)
	}
	return n
}

// zone returns the zone of a name; nil: none.
func (t *Table) zone(name string) *zone {
	for i := range t.zones {
		if Inside(name, t.zones[i].name) {
			return &t.zones[i]
		}
	}
	return nil
}

// set replaces the records of a name.
func (z *zone) set(name string, records []Record) {
	step := 0
	switch had := len(z.records[name]) > 0; {
	case len(records) > 0 && !had:
		step = 1
	case len(records) == 0 && had:
		step = -1
	}
	if z.records[name] = records; len(records) == 0 {
		delete(z.records, name)
	}
	for upper := name; step != 0 && upper != z.name; {
		_, upper, _ = strings.Cut(upper, ".")
		if z.longer[upper] += step; z.longer[upper] == 0 {
			delete(z.longer, upper)
		}
	}
}

// records returns the records of an entry; nil: none.
func (e *Entry) records(ttl uint32) (all []Record) {
	if e == nil {
		return nil
	}
	for _, a := range e.Addresses {
		kind := "A"
		if a.Is6() {
			kind = "AAAA"
		}
		all = append(all, Record{e.Name + ".", kind, cmp.Or(e.TTL, ttl), a.String()})
	}
	return all
}

// soa returns the SOA record of a zone. Negative answers stay in caches for its last number.
func (t *Table) soa(z *zone) Record {
	data := fmt.Sprintf("%s hostmaster.%s. %d 7200 1800 86400 %d", t.nameserver(z, t.cfg.Nameservers[0]), z.name, t.serial, t.cfg.TTL)
	return Record{z.name + ".", "SOA", t.cfg.TTL, data}
}

func (t *Table) nameserver(z *zone, name string) string { return name + "." + z.name + "." }

// ns returns the NS records of a zone, and the addresses of their names.
func (t *Table) ns(z *zone) (all, glue []Record) {
	for _, name := range t.cfg.Nameservers {
		all = append(all, Record{z.name + ".", "NS", t.cfg.TTL, t.nameserver(z, name)})
		glue = append(glue, z.records[name+"."+z.name]...)
	}
	return all, glue
}

// Records returns all records of a zone, the SOA record first; nil: no zone has this name. It is the content of a zone
// transfer.
func (t *Table) Records(name string) (all []Record) {
	i := slices.IndexFunc(t.zones, func(z zone) bool { return z.name == strings.ToLower(strings.TrimSuffix(name, ".")) })
	if i < 0 {
		return nil
	}
	z := &t.zones[i]
	ns, _ := t.ns(z)
	all = append([]Record{t.soa(z)}, ns...)
	for _, name := range slices.Sorted(maps.Keys(z.records)) {
		all = append(all, z.records[name]...)
	}
	return append(all, t.delegations(z)...)
}

// delegations returns the NS records of the zones below a zone, with addresses. A secondary that has the upper zone only
// needs them.
func (t *Table) delegations(upper *zone) (all []Record) {
	for i := range t.zones {
		if z := &t.zones[i]; z.name != upper.name && Inside(z.name, upper.name) {
			ns, glue := t.ns(z)
			all = append(append(all, ns...), glue...)
		}
	}
	return all
}

// Serial returns the serial number of all zones.
func (t *Table) Serial() uint32 { return t.serial }
