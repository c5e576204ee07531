package loadbalancer

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

const samplesDir = "../../../test/metallb"

// TestSamples: the speakers' decisions for objects like those of MetalLB's samples. They are sessions, routes, and the
// nodes that announce by ARP and NDP. Read the golden file for the details.
func TestSamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(samplesDir, "samples", "*.yaml"))
	if err != nil || len(files) != 18 {
		t.Fatalf("%d samples, %v", len(files), err)
	}
	var got strings.Builder
	for _, file := range files {
		fmt.Fprintf(&got, "-- %s --\n%s", filepath.Base(file), sampleWorld(t, file).decided())
	}
	const path = "testdata/samples.golden"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got.String() != string(want) {
		t.Errorf("%v: got\n%s\nwant\n%s", err, got.String(), want)
	}
}

// TestSamplesNamed: the README's table names each of Fairway's samples once, and 18 of MetalLB's.
func TestSamplesNamed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(samplesDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], ".yaml") {
			continue
		}
		ours := strings.Trim(cells[1], " `")
		if _, err := os.Stat(filepath.Join(samplesDir, "samples", ours)); err != nil {
			t.Error(err)
		}
		theirs[strings.Trim(cells[2], " `")] = true
	}
	if len(theirs) != 18 {
		t.Errorf("%d of MetalLB's samples are named", len(theirs))
	}
}

// sampleObjects returns the objects of metallb.io in a file, by kind.
func sampleObjects(t *testing.T, file string) map[string][]*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]*unstructured.Unstructured{}
	for doc := range strings.SplitSeq(string(text), "---\n") {
		o := new(unstructured.Unstructured)
		if err := yaml.UnmarshalStrict([]byte(doc), &o.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[o.GetKind()] = append(all[o.GetKind()], o)
	}
	return all
}

func converted[V any](all []*unstructured.Unstructured, convert func(*unstructured.Unstructured) *V) (out []*V) {
	for _, o := range all {
		out = append(out, convert(o))
	}
	return out
}

// A sampled is the input of a sample's decision, including the objects that the sample does not contain.
type sampled struct {
	announce.BGPInput
	peers bool // the sample has routers
}

func sampleWorld(t *testing.T, file string) sampled {
	t.Helper()
	own, world := sampleObjects(t, file), sampleObjects(t, filepath.Join(samplesDir, "world.yaml"))
	objects := func(kind string) []*unstructured.Unstructured {
		if len(own[kind]) > 0 || kind == "BGPAdvertisement" && len(own["L2Advertisement"]) > 0 {
			return own[kind]
		}
		return world[kind]
	}
	in := announce.BGPInput{
		Input: announce.Input{
			Pools: converted(objects("IPAddressPool"), convertPool), L2: converted(objects("L2Advertisement"), convertL2Advertisement),
			Endpoints: func(api.Name) announce.Endpoints { return announce.Endpoints{Any: true} },
		},
		Advertisements: converted(objects("BGPAdvertisement"), convertBGPAdvertisement), Peers: converted(objects("BGPPeer"), convertBGPPeer),
		BFDProfiles: converted(objects("BFDProfile"), convertBFDProfile), Communities: converted(objects("Community"), convertCommunity),
		Password: func(secret string) (string, bool) { return "of " + secret, true },
		Unserved: func(*announce.Service) string { return "" },
	}
	for i := range 2 {
		name := fmt.Sprintf("node-%d", i+1)
		in.Nodes = append(in.Nodes, announce.Node{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name},
			Addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("172.18.0.1%d", i+1)), netip.MustParseAddr(fmt.Sprintf("fd00:172:18::1%d", i+1))}})
	}
	for name, addrs := range map[string][]string{"first": {"192.0.2.1", "2001:db8:2::1"}, "second": {"192.0.2.17"}, "own": {"203.0.113.1", "203.0.113.44", "2001:db8:cc0::f"}} {
		s := &announce.Service{Name: api.Name{Namespace: "shop", Name: name}}
		for _, a := range addrs {
			s.Addrs = append(s.Addrs, netip.MustParseAddr(a))
		}
		in.Services = append(in.Services, s)
	}
	return sampled{in, len(own["BGPPeer"]) > 0}
}

// decided returns the decision about both nodes as text.
func (in sampled) decided() string {
	var lines []string
	for _, p := range in.Pools {
		lines = append(lines, fmt.Sprintf("pool %s %v auto %v, without .0 and .255 %v%s %s", p.Name, p.Ranges, p.AutoAssign, p.AvoidBuggyIPs, allocationText(p), problemsText(p.Problems)))
	}
	for a, d := range announce.Decide(in.Input) {
		if all := d.Candidates(); len(all) > 0 {
			line := fmt.Sprintf("l2 %v", a)
			for _, c := range all {
				line += fmt.Sprintf(" %s%v", c.Node, c.Interfaces)
			}
			lines = append(lines, line)
		}
	}
	for _, n := range in.Nodes {
		one := in.BGPInput
		one.Node = n.Name
		d := announce.DecideBGP(one)
		for _, s := range d.Sessions {
			if in.peers {
				lines = append(lines, fmt.Sprintf("bgp %s to %s", n.Name, sessionText(s.SessionConfig)))
			}
			for _, r := range s.Routes {
				line := fmt.Sprintf("bgp %s to %s: %v", n.Name, s.Peer, r.Prefix)
				if r.NextHop.IsValid() {
					line += fmt.Sprintf(" by %v", r.NextHop)
				}
				if r.LocalPref != 0 || len(r.Communities) > 0 {
					line += fmt.Sprintf(", localPref %d, communities %v", r.LocalPref, r.Communities)
				}
				lines = append(lines, line)
			}
		}
		for _, p := range d.Problems {
			lines = append(lines, fmt.Sprintf("bgp %s problem %+v", n.Name, p))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func allocationText(p *ipam.Pool) string {
	if a := p.Allocation; a != nil {
		return fmt.Sprintf(", priority %d for namespaces %v %v, Services %v", a.Priority, a.Namespaces, a.NamespaceSelectors, a.ServiceSelectors)
	}
	return ""
}

func problemsText(all []api.Problem) string {
	if len(all) == 0 {
		return "valid"
	}
	return fmt.Sprint(all)
}

func sessionText(c announce.SessionConfig) string {
	return fmt.Sprintf("%s %v AS %d of AS %d: hold %v keepalive %v connect %v password %q vrf %q bfd %+v IPv4 %v IPv6 %v",
		c.Peer, c.Address, c.PeerASN, c.LocalASN, c.Hold, c.Keepalive, c.Connect, c.Password, c.VRF, c.BFD, c.IPv4, c.IPv6)
}
