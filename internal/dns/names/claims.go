package names

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Limits for objects of tenants.
const (
	NamesPerNamespace = 1000
	AddressesPerName  = 32
	HostnamesPerClaim = 64 // host names of one object
)

// The reasons of problems.
const (
	ReasonTaken   = "NameTaken"
	ReasonTooMany = "TooManyNames"
	ReasonInvalid = "InvalidHostname"
)

// A Ref is the identity of an object.
type Ref struct{ Kind, Namespace, Name string }

func (r Ref) String() string { return r.Kind + " " + r.Namespace + "/" + r.Name }

// Compare orders objects by kind, namespace and name.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name))
}

// An Object wants names for addresses.
type Object struct {
	Ref
	UID       string
	Created   int64        // seconds since 1970
	Hostnames []string     // as the object has them: annotations, hosts of rules
	Own       bool         // the object also has the name NAME.NAMESPACE of each zone
	Addresses []netip.Addr // of the status; those of Parents are further ones
	Targets   []string     // host names of the status, for CNAME records
	TTL       uint32       // in seconds; 0: the default
	Parents   []Parent     // the listeners that accept a route
}

// A Parent is the listener of a Gateway, or all of its listeners if Listener and Port are empty.
type Parent struct {
	Namespace, Name string
	Listener        string
	Port            int32
}

// A Gateway has the addresses of its routes.
type Gateway struct {
	Namespace, Name string
	Addresses       []netip.Addr
	Targets         []string
	Listeners       []Listener
}

// A Listener is one listener of a Gateway. An empty Hostname admits all names.
type Listener struct {
	Name     string
	Port     int32
	Hostname string
}

// A Cluster is everything that decides about names.
type Cluster struct {
	Objects  []Object
	Gateways []Gateway
}

// A Problem is a part of an object that has no effect, in words for the object's owner.
type Problem struct {
	About           Ref
	Reason, Message string
}

// A Claim is the wish of one object for one name.
type Claim struct {
	Name      string // in lower case, without the dot at the end
	By        Ref
	Created   int64
	Addresses []netip.Addr
	Targets   []string
	TTL       uint32
}

// Claims returns the valid wishes of all objects, the oldest objects first. zones are the zones of names NAME.NAMESPACE.
func Claims(c Cluster, zones []string) (all []Claim, problems []Problem) {
	gateways := map[[2]string]Gateway{}
	for _, g := range c.Gateways {
		gateways[[2]string{g.Namespace, g.Name}] = g
	}
	return claims(slices.Clone(c.Objects), gateways, zones)
}

// claims is Claims for objects that it may sort.
func claims(objects []Object, gateways map[[2]string]Gateway, zones []string) (all []Claim, problems []Problem) {
	slices.SortFunc(objects, func(a, b Object) int { return cmp.Or(cmp.Compare(a.Created, b.Created), a.Compare(b.Ref)) })
	names := map[string]map[string]bool{} // by namespace
	for _, o := range objects {
		found, invalid := o.claims(gateways, zones)
		problems = append(problems, invalid...)
		mine := names[o.Namespace]
		if mine == nil {
			mine = map[string]bool{}
			names[o.Namespace] = mine
		}
		for _, one := range found {
			if !mine[one.Name] && len(mine) >= NamesPerNamespace {
				problems = append(problems, Problem{o.Ref, ReasonTooMany, fmt.Sprintf("%s and further names are left out: the namespace has %d names [remove host names from older objects]", one.Name, NamesPerNamespace)})
				break
			}
			mine[one.Name] = true
			all = append(all, one)
		}
	}
	return all, problems
}

// claims returns the claims of an object, sorted by name, each name once.
func (o Object) claims(gateways map[[2]string]Gateway, zones []string) (all []Claim, problems []Problem) {
	claim := func(name string, addresses []netip.Addr, targets []string) {
		at := slices.IndexFunc(all, func(c Claim) bool { return c.Name == name })
		if at < 0 {
			all = append(all, Claim{Name: name, By: o.Ref, Created: o.Created, TTL: o.TTL})
			at = len(all) - 1
		}
		all[at].Addresses = append(all[at].Addresses, addresses...)
		all[at].Targets = append(all[at].Targets, targets...)
	}
	wanted := o.Hostnames
	if len(wanted) > HostnamesPerClaim {
		wanted = wanted[:HostnamesPerClaim]
		problems = append(problems, Problem{o.Ref, ReasonTooMany, fmt.Sprintf("only the first %d host names count [use several objects]", HostnamesPerClaim)})
	}
	var hostnames []string
	for _, text := range wanted {
		name, ok := Hostname(text)
		if !ok {
			problems = append(problems, Problem{o.Ref, ReasonInvalid, fmt.Sprintf("%.100q is no host name and is left out [write one as www.example.org or *.example.org]", text)})
			continue
		}
		hostnames = append(hostnames, name)
	}
	if n := len(o.Addresses); n > AddressesPerName && len(hostnames) > 0 {
		problems = append(problems, Problem{o.Ref, ReasonTooMany, fmt.Sprintf("only %d of the %d addresses count", AddressesPerName, n)})
	}
	if len(o.Parents) == 0 {
		for _, name := range hostnames {
			claim(name, o.Addresses, o.Targets)
		}
	}
	for _, p := range o.Parents {
		g := gateways[[2]string{p.Namespace, p.Name}]
		for _, name := range g.admits(p, hostnames) {
			claim(name, g.Addresses, g.Targets)
		}
	}
	if o.Own {
		for _, zone := range zones {
			if name, ok := Hostname(o.Name + "." + o.Namespace + "." + zone); ok {
				claim(name, o.Addresses, o.Targets)
			}
		}
	}
	slices.SortFunc(all, func(a, b Claim) int { return cmp.Compare(a.Name, b.Name) })
	return all, problems
}

// admits returns the names of a route that the listeners of a parent admit: the listeners' own host names if the route
// has none.
func (g Gateway) admits(p Parent, hostnames []string) (all []string) {
	if len(hostnames) == 0 {
		hostnames = []string{""}
	}
	for _, l := range g.Listeners {
		if p.Listener != "" && p.Listener != l.Name || p.Port != 0 && p.Port != l.Port {
			continue
		}
		own := ""
		if l.Hostname != "" {
			var ok bool
			if own, ok = Hostname(l.Hostname); !ok {
				continue
			}
		}
		for _, name := range hostnames {
			if both := intersect(own, name); both != "" && !slices.Contains(all, both) {
				all = append(all, both)
			}
		}
	}
	return all
}

// intersect returns the names that both host names mean; empty: none. An empty host name means all names.
func intersect(a, b string) string {
	switch {
	case a == "" || a == b:
		return b
	case b == "":
		return a
	case strings.HasPrefix(a, "*.") && strings.HasSuffix(b, a[1:]):
		return b
	case strings.HasPrefix(b, "*.") && strings.HasSuffix(a, b[1:]):
		return a
	}
	return ""
}

// Hostname returns a host name in lower case and without the dot at the end, and whether it is valid. The first label may
// be a wildcard.
func Hostname(text string) (name string, ok bool) {
	name = strings.ToLower(strings.TrimSuffix(strings.TrimSpace(text), "."))
	if name == "" || len(name) > 253 {
		return "", false
	}
	for label := range strings.SplitSeq(strings.TrimPrefix(name, "*."), ".") {
		if len(label) == 0 || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return "", false
		}
		for _, r := range label {
			if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
				return "", false
			}
		}
	}
	return name, true
}
