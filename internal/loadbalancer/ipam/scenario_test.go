package ipam

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/api"
)

var update = flag.Bool("update", false, "write the golden files")

// TestScenarios runs the scripts of testdata: MetalLB's end-to-end tests of assignment and
// selectors, told as ours, and what it does not test. A line is
//
//	pool NAME RANGE,… [no-auto] [avoid-buggy] [created=N] [priority=N] [namespaces=A,B] [namespace-label=K=V] [service-label=K=V]
//	no-pool NAME
//	reserve RANGE,…
//	namespace NAME [LABEL=VALUE]
//	service NAME [created=N] [families=46] [prefer] [ports=80/TCP,…] [pool=P] [addrs=A,…] [key=K] [local=SELECTOR]
//	        [label=K=V] [refused=WHY] [status=A,…] [from=POOL] [unwanted]
//	remove NAME
//	restart   (a new Allocator, and the statuses as they were last decided)
//
// and "decide", after which want has what was decided, with the events, and what is wrong with
// pools.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil || len(archive.Files) != 2 {
				t.Fatalf("%d parts: %v", len(archive.Files), err)
			}
			got := newScript().run(t, string(archive.Files[0].Data))
			if *update {
				archive.Files[1].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if want := string(archive.Files[1].Data); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// A script is the state of the one that runs.
type script struct {
	alloc      *Allocator
	pools      map[string]*Pool
	services   map[api.Name]*Service
	namespaces map[string]map[string]string
	reserved   []Range
	statuses   map[api.Name]Decision
	out        strings.Builder
}

func newScript() *script {
	return &script{alloc: New(), pools: map[string]*Pool{}, services: map[api.Name]*Service{}, namespaces: map[string]map[string]string{}, statuses: map[api.Name]Decision{}}
}

func (s *script) run(t *testing.T, text string) string {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		args := map[string]string{}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			args[key] = value
		}
		switch words[0] {
		case "pool":
			s.pool(t, words[1], words[2], args)
		case "no-pool":
			delete(s.pools, words[1])
			s.setPools()
		case "reserve":
			s.reserved = ranges(t, words[1])
			s.alloc.Reserve(s.reserved)
		case "namespace":
			delete(args, words[1])
			s.namespaces[words[1]] = args
			s.alloc.SetNamespace(words[1], args)
		case "service":
			s.service(t, words[1], args)
		case "remove":
			name := s.name(words[1])
			delete(s.services, name)
			s.alloc.Remove(name)
		case "restart":
			s.restart()
		case "decide":
			s.decide()
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	return s.out.String()
}

func (s *script) name(text string) api.Name {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		return api.Name{Namespace: "default", Name: text}
	}
	return api.Name{Namespace: namespace, Name: name}
}

func ranges(t *testing.T, text string) (all []Range) {
	for one := range strings.SplitSeq(text, ",") {
		r, err := ParseRange(one)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func equals(text string) api.Selector {
	key, value, _ := strings.Cut(text, "=")
	return api.NewSelector(api.Requirement{Key: key, Op: api.In, Values: []string{value}})
}

func (s *script) pool(t *testing.T, name, addresses string, args map[string]string) {
	_, noAuto := args["no-auto"]
	_, avoid := args["avoid-buggy"]
	p := &Pool{Name: name, Ranges: ranges(t, addresses), AutoAssign: !noAuto, AvoidBuggyIPs: avoid, Created: number(args["created"])}
	a := &Allocation{Priority: int(number(args["priority"]))}
	if v, ok := args["namespaces"]; ok {
		a.Namespaces = strings.Split(v, ",")
	}
	if v, ok := args["namespace-label"]; ok {
		a.NamespaceSelectors = []api.Selector{equals(v)}
	}
	if v, ok := args["service-label"]; ok {
		a.ServiceSelectors = []api.Selector{equals(v)}
	}
	if a.Priority != 0 || len(a.Namespaces)+len(a.NamespaceSelectors)+len(a.ServiceSelectors) > 0 {
		p.Allocation = a
	}
	s.pools[name] = p
	s.setPools()
}

func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64) // empty is 0
	return n
}

func (s *script) setPools() {
	var all []*Pool
	for _, p := range s.pools {
		all = append(all, p)
	}
	s.alloc.SetPools(all)
}

func (s *script) service(t *testing.T, name string, args map[string]string) {
	_, prefer := args["prefer"]
	_, unwanted := args["unwanted"]
	svc := &Service{
		Name: s.name(name), Created: number(args["created"]), Wanted: !unwanted, PreferDual: prefer, Families: []Family{IPv4},
		Pool: args["pool"], SharingKey: args["key"], Backing: args["local"], Refused: args["refused"], AssignedFrom: args["from"],
	}
	if v, ok := args["families"]; ok {
		svc.Families = nil
		for _, f := range v {
			svc.Families = append(svc.Families, Family(f-'0'))
		}
	}
	if v, ok := args["label"]; ok {
		key, value, _ := strings.Cut(v, "=")
		svc.Labels = map[string]string{key: value}
	}
	ports := "80/TCP"
	if v, ok := args["ports"]; ok {
		ports = v
	}
	for p := range strings.SplitSeq(ports, ",") {
		port, proto, _ := strings.Cut(p, "/")
		parsed, err := api.ParseProto(proto)
		if err != nil {
			t.Fatal(err)
		}
		svc.Ports = append(svc.Ports, Port{parsed, uint16(number(port))})
	}
	for into, key := range map[*[]netip.Addr]string{&svc.Addrs: "addrs", &svc.Assigned: "status"} {
		for one := range strings.SplitSeq(args[key], ",") {
			if one != "" {
				*into = append(*into, netip.MustParseAddr(one))
			}
		}
	}
	s.services[svc.Name] = svc
	s.alloc.Set(svc)
}

// restart begins anew with the objects as they are, in another order.
func (s *script) restart() {
	s.alloc = New()
	var all []*Service
	for name, svc := range s.services {
		now := *svc
		now.Assigned, now.AssignedFrom = s.statuses[name].Addrs, s.statuses[name].Pool
		all = append(all, &now)
	}
	slices.SortFunc(all, func(a, b *Service) int { return b.Name.Compare(a.Name) })
	for _, svc := range all {
		s.alloc.Set(svc)
	}
	for name, l := range s.namespaces {
		s.alloc.SetNamespace(name, l)
	}
	s.alloc.Reserve(s.reserved)
	s.setPools()
	fmt.Fprintln(&s.out, "restart")
}

func (s *script) decide() {
	for _, d := range s.alloc.Decide() {
		s.statuses[d.Name] = d
		var addrs []string
		for _, a := range d.Addrs {
			addrs = append(addrs, a.String())
		}
		fmt.Fprintf(&s.out, "%v: %s %s\n", d.Name, strings.Join(addrs, ","), d.Pool)
		for _, e := range d.Events {
			kind := "Normal"
			if e.Warning {
				kind = "Warning"
			}
			fmt.Fprintf(&s.out, "  %s %s: %s\n", kind, e.Reason, e.Message)
		}
	}
	r := s.alloc.Report()
	for _, p := range r.Problems {
		fmt.Fprintf(&s.out, "problem: %s\n", p)
	}
	if len(r.Kept) > 0 {
		fmt.Fprintf(&s.out, "kept, in no pool: %v\n", r.Kept)
	}
	for _, u := range r.Pools {
		fmt.Fprintf(&s.out, "%s: %d of %d, %d of %d\n", u.Pool, u.InUse4, u.Total4, u.InUse6, u.Total6)
	}
	fmt.Fprintln(&s.out, "--")
}
