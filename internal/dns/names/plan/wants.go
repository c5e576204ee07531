package plan

import (
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/dns/names"
)

// A Set is all records of a name with one type.
type Set struct {
	Name string // in lower case, without the dot at the end
	Type string // one of Types or TXT; of other types only the existence counts
	TTL  uint32
	// Values are sorted: addresses, host names without the dot at the end, or texts without quotes. A set of the server
	// without values is never ours.
	Values []string
}

// Types are the types of records that objects get.
var Types = []string{"A", "AAAA", "CNAME"}

const typeTXT = "TXT"

// String returns the set as "www.example.org A 192.0.2.1,192.0.2.2".
func (s Set) String() string { return s.Name + " " + s.Type + " " + strings.Join(s.Values, ",") }

// exists reports whether the set has records.
func (s Set) exists() bool { return len(s.Values) > 0 }

// A Want is a set of records that an object is to have. A TTL of 0 leaves the TTL to the server.
type Want struct {
	Set
	By names.Ref
}

// Wants returns the records of names. A name with addresses has no CNAME record, and a name has at most one CNAME record:
// DNS forbids more.
func Wants(entries map[string]*names.Entry) (all []Want) {
	for _, e := range entries {
		values := map[string][]string{}
		for _, a := range e.Addresses {
			kind := "A"
			if a.Is6() {
				kind = "AAAA"
			}
			values[kind] = append(values[kind], a.String())
		}
		if len(values) == 0 {
			for _, t := range e.Targets {
				if t != e.Name && len(values) == 0 {
					values["CNAME"] = []string{t}
				}
			}
		}
		for kind, v := range values {
			slices.Sort(v)
			all = append(all, Want{Set{e.Name, kind, e.TTL, slices.Compact(v)}, e.Owner})
		}
	}
	return all
}
