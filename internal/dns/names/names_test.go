package names

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
)

var update = flag.Bool("update", false, "write the answers into testdata")

// TestNames: each file of testdata has objects, questions, and the answers to them.
func TestNames(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			c := ParseCluster(t, string(a.Files[0].Data))
			cfg := Config{Zones: []string{"example.org", "lab.example.org", "example.net"}, Nameservers: []string{"dns.kube-system"}, TTL: 60}
			table, problems := New(c, cfg, nil, 7)
			slices.Reverse(c.Objects)
			again, _ := New(c, cfg, table, 9)
			if again.Serial() != 7 {
				t.Errorf("the order of objects makes another table")
			}
			got := answers(table, string(a.Files[1].Data), problems)
			if *update {
				a.Files = append(a.Files[:2], txtar.File{Name: "answers", Data: []byte(got)})
				if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if len(a.Files) != 3 || got != string(a.Files[2].Data) {
				t.Errorf("got:\n%s", got)
			}
		})
	}
}

func answers(table *Table, questions string, problems []Problem) string {
	var b strings.Builder
	for line := range strings.Lines(questions) {
		f := strings.Fields(line)
		if f[0] == "transfer" {
			fmt.Fprintf(&b, "%s\n", strings.TrimSpace(line))
			for _, r := range table.Records(f[1]) {
				fmt.Fprintf(&b, "  %v\n", r)
			}
			continue
		}
		a := table.Resolve(f[0], f[1])
		fmt.Fprintf(&b, "%s: %v\n", strings.TrimSpace(line), a.Code)
		for _, r := range slices.Concat(a.Answer, a.Authority, a.Additional) {
			fmt.Fprintf(&b, "  %v\n", r)
		}
	}
	for _, p := range problems {
		fmt.Fprintf(&b, "event of %v: %s: %s\n", p.About, p.Reason, p.Message)
	}
	return b.String()
}

// ParseCluster reads a line an object: KIND NAMESPACE/NAME key=value…, where a key may come several times.
func ParseCluster(t *testing.T, text string) (c Cluster) {
	t.Helper()
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		namespace, name, _ := strings.Cut(f[1], "/")
		o, g := Object{Ref: Ref{f[0], namespace, name}}, Gateway{Namespace: namespace, Name: name}
		for _, one := range f[2:] {
			key, value, _ := strings.Cut(one, "=")
			n, _ := strconv.Atoi(value)
			parts := append(strings.Split(value, "/"), "", "")
			switch key {
			case "created":
				o.Created = int64(n)
			case "own":
				o.Own = true
			case "host":
				o.Hostnames = append(o.Hostnames, value)
			case "addr":
				o.Addresses = append(o.Addresses, netip.MustParseAddr(value))
				g.Addresses = o.Addresses
			case "ttl":
				o.TTL = uint32(n)
			case "parent":
				o.Parents = append(o.Parents, Parent{Namespace: parts[0], Name: parts[1], Listener: parts[2]})
			case "listener":
				g.Listeners = append(g.Listeners, Listener{Name: parts[0], Hostname: parts[1]})
			default:
				t.Fatalf("unknown key %q", key)
			}
		}
		if f[0] == "Gateway" {
			c.Gateways = append(c.Gateways, g)
		} else {
			c.Objects = append(c.Objects, o)
		}
	}
	return c
}

// TestLimits: a namespace and an object have bounded numbers of names. Names of other namespaces are unharmed.
func TestLimits(t *testing.T) {
	var c Cluster
	for i := range NamesPerNamespace + 100 {
		c.Objects = append(c.Objects, Object{
			Ref: Ref{"Service", "greedy", fmt.Sprint("s", i)}, Created: 1,
			Hostnames: []string{fmt.Sprintf("n%d.example.org", i)}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		})
	}
	many := Object{Ref: Ref{"Service", "many", "s"}, Created: 2, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
	for i := range HostnamesPerClaim + 1 {
		many.Hostnames = append(many.Hostnames, fmt.Sprintf("m%d.example.org", i))
	}
	wide := Object{Ref: Ref{"Service", "wide", "s"}, Created: 3, Hostnames: []string{"wide.example.org"}}
	for i := range AddressesPerName + 1 {
		wide.Addresses = append(wide.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	c.Objects = append(c.Objects, many, wide)
	table, problems := New(c, Config{Zones: []string{"example.org"}, Nameservers: []string{"ns"}, TTL: 60}, nil, 1)
	if got, want := table.Len(), NamesPerNamespace+HostnamesPerClaim+1; got != want {
		t.Errorf("%d names, want %d", got, want)
	}
	if len(problems) != 102 {
		t.Errorf("%d problems, want one for each object above the limit", len(problems))
	}
}

// TestSerial: the serial number grows with each change, and only then.
func TestSerial(t *testing.T) {
	cfg := Config{Zones: []string{"example.org"}, Nameservers: []string{"ns"}, TTL: 60}
	one := ParseCluster(t, "Service a/b host=www.example.org addr=192.0.2.1")
	two := ParseCluster(t, "Service a/b host=www.example.org addr=192.0.2.2")
	t1, _ := New(one, cfg, nil, 100)
	t2, _ := New(one, cfg, t1, 200)
	t3, _ := New(two, cfg, t2, 100)
	t4, _ := New(one, cfg, t3, 300)
	if t1.Serial() != 100 || t2.Serial() != 100 || t3.Serial() != 101 || t4.Serial() != 300 {
		t.Error(t1.Serial(), t2.Serial(), t3.Serial(), t4.Serial())
	}
}

// FuzzNames: no host name of a tenant makes a record outside of the zone, and no question makes Resolve fail.
func FuzzNames(f *testing.F) {
	f.Add("www.example.org", "www.example.org.", "A")
	f.Add("*.example.org", "a.b.example.org", "ANY")
	f.Add("example.org", "example.org", "NS")
	f.Add("a b.example.org", ".", "SOA")
	f.Fuzz(func(t *testing.T, host, question, qtype string) {
		c := Cluster{Objects: []Object{{Ref: Ref{"Service", "a", "b"}, Hostnames: []string{host}, Own: true, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}}
		table, _ := New(c, Config{Zones: []string{"example.org"}, Nameservers: []string{"b.a"}, TTL: 60}, nil, 1)
		for _, r := range table.Records("example.org") {
			if name, ok := Hostname(r.Name); !ok || !Inside(name, "example.org") || strings.ContainsAny(r.Data, "\n\"") {
				t.Errorf("%q makes the record %v", host, r)
			}
		}
		a := table.Resolve(question, qtype)
		if (a.Code == Found) != (len(a.Answer) > 0) || a.Code != NotAZone && a.Code != Found && len(a.Authority) != 1 {
			t.Errorf("%q %q: %+v", question, qtype, a)
		}
	})
}
