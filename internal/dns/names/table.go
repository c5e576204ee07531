package names

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
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
}

// A zone has the records of its names, and the names that exist only because a longer name does.
type zone struct {
	name    string
	records map[string][]Record // by the name without dot
	parents map[string]bool
}

// New makes the table of a cluster. The serial number is the previous table's if the records are the same, and else now
// or the next number, whichever is larger. previous may be nil.
func New(c Cluster, cfg Config, previous *Table, now uint32) (*Table, []Problem) {
	claims, problems := Claims(c, cfg.Zones)
	claims, reserved := cfg.reserve(claims)
	entries, taken := Decide(claims)
	t := &Table{cfg: cfg}
	for _, name := range cfg.Zones {
		t.zones = append(t.zones, zone{name: name, records: map[string][]Record{}, parents: map[string]bool{name: true}})
	}
	slices.SortFunc(t.zones, func(a, b zone) int { return cmp.Or(len(b.name)-len(a.name), cmp.Compare(a.name, b.name)) })
	for _, e := range entries {
		if z := t.zone(e.Name); z != nil {
			z.add(e, cfg.TTL)
		}
	}
	t.serial = now
	if previous != nil {
		t.serial = max(now, previous.serial+1)
		if t.same(previous) {
			t.serial = previous.serial
		}
	}
	return t, slices.Concat(problems, reserved, taken)
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
	return fmt.Sprint(t.cfg) == fmt.Sprint(o.cfg) && slices.EqualFunc(t.zones, o.zones, func(a, b zone) bool {
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

// add adds the addresses of an entry. Each name between it and the zone exists from then on.
func (z *zone) add(e *Entry, ttl uint32) {
	if len(e.Addresses) == 0 {
		return
	}
	for _, a := range e.Addresses {
		kind := "A"
		if a.Is6() {
			kind = "AAAA"
		}
		z.records[e.Name] = append(z.records[e.Name], Record{e.Name + ".", kind, cmp.Or(e.TTL, ttl), a.String()})
	}
	for name := e.Name; name != z.name; {
		_, name, _ = strings.Cut(name, ".")
		z.parents[name] = true
	}
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
