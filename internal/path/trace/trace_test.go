package trace

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestReadOrder(t *testing.T) {
	for text, want := range map[string]string{
		`{"run":"a1","node":"n","proto":6,"to":"10.96.0.1:80","tag":3}`:                                     "",
		`{"run":"a1","node":"n","proto":17,"to":"[fd00::1]:53","client":"fd00::2","send":{"name":"db"}}`:    "",
		`{"run":"a1","proto":6,"to":"10.96.0.1:80","tag":3,"shell":"sh"}`:                                   "unknown field",
		`{"run":"; drop","proto":6,"to":"10.96.0.1:80","tag":3}`:                                            "[a run is",
		`{"run":"a1","proto":1,"to":"10.96.0.1:80","tag":3}`:                                                "[a probe is TCP",
		`{"run":"a1","proto":6,"to":"10.96.0.1:0","tag":3}`:                                                 "[a probe needs",
		`{"run":"a1","proto":6,"to":"10.96.0.1:80","tag":4}`:                                                "[a tag is",
		`{"run":"a1","proto":6,"to":"10.96.0.1:80"}`:                                                        "[give one",
		`{"run":"a1","proto":6,"to":"10.96.0.1:80","tag":3,"for":3600000000000}`:                            "[at most 30s]",
		`{"run":"a1","proto":6,"to":"10.96.0.1:80","tag":3,"send":{"size":100000}}`:                         "[at most 9000]",
		`{"run":"a1","proto":6,"to":"10.96.0.1:80","tag":3,"endpoints":["10.0.0.1:0"]}`:                     "[an endpoint needs",
		`{"run":"a1","proto":6,"to":"10.96.0.1:80","tag":3,"node":"` + strings.Repeat("n", maxOrder) + `"}`: "read the order",
	} {
		_, err := ReadOrder(strings.NewReader(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.100s: error %v, want %q", text, err, want)
		}
	}
}

// step is one rule that judged a packet.
func step(node string, pass int, src, dst string, ttl uint8, hook, table, verdict string) Observation {
	return Observation{
		Node: node, Pass: pass, Source: FromNFTrace, Time: time.Unix(0, 0),
		Packet: &Packet{Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), TTL: ttl, Proto: tcp},
		Rule:   &Rule{Family: "inet", Table: table, Chain: "c", Handle: 7, Kind: "rule", Hook: hook, Verdict: verdict},
	}
}

func flow(node, src, dst, by, to string) Observation {
	p := netip.MustParseAddrPort
	return Observation{Node: node, Source: FromConntrack, Flow: &Flow{Event: "new", Orig: Tuple{p(src), p(dst)}, Reply: Tuple{p(by), p(to)}}}
}

// TestFollow tells the classes apart that no kernel of a test shows: nodes that were not watched, without conntrack, without
// any observation.
func TestFollow(t *testing.T) {
	const client, vip, pod, node1 = "10.244.1.100:4711", "10.96.0.1:80", "10.244.2.6:8080", "172.18.0.11:5000"
	first := []Observation{
		step("node-1", 1, client, vip, 64, "prerouting", "fairway", "accept"), step("node-1", 1, client, pod, 63, "postrouting", "fairway", "accept"),
		flow("node-1", client, vip, pod, node1),
	}
	second := []Observation{step("node-2", 1, node1, pod, 62, "prerouting", "fairway", "accept"), flow("node-2", node1, pod, pod, node1)}
	home := Observation{Node: "node-2", Source: FromState, State: &State{Endpoints: []EndpointState{{Addr: netip.MustParseAddr("10.244.2.6"), Link: "veth"}}}}
	dropped := step("node-2", 1, node1, pod, 61, "forward", "firewall", "drop")
	own := []Observation{ // a node's own packet leaves with the TTL of its socket
		step("node-1", 1, client, vip, 64, "output", "fairway", "accept"), flow("node-1", client, vip, pod, node1),
		step("node-2", 1, node1, pod, 64, "prerouting", "fairway", "accept"), flow("node-2", node1, pod, pod, node1),
	}
	later := []Observation{ // both nodes see the same headers, and the names sort the other way
		step("node-1", 1, client, vip, 64, "prerouting", "fairway", "accept"), flow("node-1", client, vip, pod, node1),
		step("node-2", 1, client, vip, 64, "output", "fairway", "accept"), flow("node-2", client, vip, vip, client),
	}
	early := []Observation{ // mode ebpf: the socket has the endpoint's address before the first packet
		step("node-1", 1, client, pod, 64, "prerouting", "fairway", "accept"), flow("node-1", client, pod, pod, client),
		step("node-2", 1, client, pod, 64, "output", "fairway", "accept"), flow("node-2", client, pod, pod, client),
	}
	for _, c := range []struct {
		name    string
		all     []Observation
		unseen  []string
		outcome Outcome
		want    string
	}{
		{"answered", append(append(first, second...), home), nil, Answered, "delivered node-2, 2 hops"},
		{"answered, from the node itself", append(own, home), nil, Answered, "delivered node-2, 2 hops"},
		{"a node calls the other node", later, nil, Answered, "delivered node-1, 2 hops"},
		{"a node's socket is aimed at an endpoint", early, nil, Answered, "delivered node-1, 2 hops"},
		{"the second node was not watched", first, []string{"node-2"}, Silent, "not-watched node-1, 1 hops"},
		{"lost between the nodes", append(first, home), nil, Silent, "lost node-1 → node-2, 1 hops"},
		{"no answer", append(append(first, second...), home), nil, Silent, "unanswered node-2, 2 hops"},
		{"a foreign rule", append(append(first, second...), dropped), nil, Silent, "dropped node-2 by inet firewall c #7, foreign, 2 hops"},
		{"nothing was seen", nil, nil, Unreachable, "not-sent node-1, 0 hops"},
		{"nothing was seen, a node was not watched", nil, []string{"node-9"}, Silent, "not-watched node-1, 0 hops"},
	} {
		w := Follow(Record{
			To: netip.MustParseAddrPort(vip), Endpoints: []netip.AddrPort{netip.MustParseAddrPort(pod)}, Observations: c.all,
			Heard: Heard{Outcome: c.outcome, Local: netip.MustParseAddrPort(client)}, Sender: "node-1", NotWatched: c.unseen,
		})
		got := fmt.Sprintf("%s %s", w.End.Class, w.End.Node)
		if w.End.Next != "" {
			got += " → " + w.End.Next
		}
		if w.End.Rule != nil {
			got += " by " + w.End.Rule.Place()
		}
		if w.End.Foreign {
			got += ", foreign"
		}
		if got += fmt.Sprintf(", %d hops", len(w.Hops)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
