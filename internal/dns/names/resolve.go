package names

import "strings"

// A Code is the kind of an answer.
type Code int

// The codes.
const (
	Found    Code = iota
	NoData        // the name exists, without a record of the type
	NoName        // the name does not exist
	NotAZone      // the name is in no zone
)

func (c Code) String() string { return [...]string{"NOERROR", "NODATA", "NXDOMAIN", "REFUSED"}[c] }

// An Answer has the sections of a DNS message.
type Answer struct {
	Code                          Code
	Answer, Authority, Additional []Record
}

// Resolve answers a question for a type, as "AAAA" or "ANY". ANY means the addresses of the name, and the SOA and NS
// records of a zone. A name that does not exist is answered by the wildcard at its closest existing parent (RFC 4592).
func (t *Table) Resolve(name, qtype string) Answer {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	z := t.zone(name)
	if z == nil {
		return Answer{Code: NotAZone}
	}
	var a Answer
	records, exists := z.find(name)
	for _, r := range records {
		if qtype == r.Type || qtype == "ANY" {
			r.Name = name + "."
			a.Answer = append(a.Answer, r)
		}
	}
	if name == z.name {
		ns, glue := t.ns(z)
		if qtype == "SOA" || qtype == "ANY" {
			a.Answer = append(a.Answer, t.soa(z))
		}
		if qtype == "NS" || qtype == "ANY" {
			a.Answer, a.Additional = append(a.Answer, ns...), glue
		}
	}
	switch {
	case len(a.Answer) > 0:
		return a
	case exists:
		a.Code = NoData
	default:
		a.Code = NoName
	}
	a.Authority = []Record{t.soa(z)}
	return a
}

// find returns the records of a name, or those of the wildcard that stands for it, and whether the name exists.
func (z *zone) find(name string) (records []Record, exists bool) {
	if records = z.records[name]; len(records) > 0 || z.longer[name] > 0 {
		return records, true
	}
	for parent := name; parent != z.name; {
		_, parent, _ = strings.Cut(parent, ".")
		if records = z.records["*."+parent]; len(records) > 0 {
			return records, true
		}
		if z.longer[parent] > 0 || len(z.records[parent]) > 0 {
			return nil, false
		}
	}
	return nil, false
}
