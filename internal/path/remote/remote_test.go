package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/path/observe"
	"github.com/fairway-net/fairway/internal/path/remote"
	"github.com/fairway-net/fairway/internal/path/trace"
	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/internal/testing/twonodes"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// plan returns a plan whose transport runs Serve in the namespaces of the nodes.
func plan(c *twonodes.Cluster, proto api.Proto) remote.Plan {
	p := remote.Plan{Transport: func(ctx context.Context, node string, in io.Reader, out io.Writer) error {
		for _, n := range c.Nodes {
			if n.Name == node {
				return n.Do(func() error { return remote.Serve(ctx, in, out, c.Config()) })
			}
		}
		return fmt.Errorf("no node %s", node)
	}}
	for _, n := range c.Nodes {
		p.Orders = append(p.Orders, c.Order(n.Name, proto, c.VIP))
	}
	p.Orders[0].Send = &trace.Send{Pod: c.Client.Addr(c.VIP.Addr().Is4()), Patience: 20 * time.Second}
	return p
}

// TestProbe: two nodes arm, one sends, and the way of the packet comes out, in both families.
func TestProbe(t *testing.T) {
	t.Parallel()
	for _, is4 := range []bool{true, false} {
		c := twonodes.New(t, is4, twonodes.NFTables)
		c.Server.Serve("tcp", c.Endpoint)
		r, err := remote.Probe(t.Context(), plan(c, api.TCP))
		if err != nil {
			t.Fatal(err)
		}
		w := trace.Follow(r.Record)
		var way []string
		for _, h := range w.Hops {
			way = append(way, fmt.Sprintf("%s %v", h.Node, h.After.Dst))
		}
		if want := fmt.Sprintf("[node-1 %v node-2 %v]", c.Endpoint, c.Endpoint); fmt.Sprint(way) != want || w.End.Class != trace.Delivered || len(r.Errors) > 0 || r.Sender != "node-1" {
			t.Errorf("way %v, want %s; end %+v, heard %+v, errors %v", way, want, w.End, r.Heard, r.Errors)
		}
		if len(r.Armed) != 2 || len(r.Armed[0].Sources) != 3 || len(r.Done) != 2 || r.Done[0].Changed || r.Done[0].Lost {
			t.Errorf("armed %+v, done %+v", r.Armed, r.Done)
		}
	}
}

// TestLive: without a probe, the nodes watch a real client's connection, which has no tag.
func TestLive(t *testing.T) {
	t.Parallel()
	c := twonodes.New(t, true, twonodes.NFTables)
	c.Server.Serve("tcp", c.Endpoint)
	p := plan(c, api.TCP)
	for i := range p.Orders {
		p.Orders[i].Tag, p.Orders[i].Send, p.Orders[i].Client = 0, nil, c.Client.Addr(true)
	}
	p.Send = func(context.Context) trace.Heard { // the client is no part of the probe
		if got := c.Client.Ask("tcp", c.VIP, 10*time.Second); got.Outcome != testnet.Answered {
			t.Error(got)
		}
		return trace.Heard{Outcome: trace.Answered}
	}
	r, err := remote.Probe(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if w := trace.Follow(r.Record); len(w.Hops) != 2 || w.Hops[0].Before.Src.Addr() != c.Client.Addr(true) || w.Hops[1].After.Dst != c.Endpoint || len(w.Reply) != 2 {
		t.Errorf("hops %+v, replies %+v", w.Hops, w.Reply)
	}
}

// TestDeadline: a node stops at its order's deadline, though nobody tells it.
func TestDeadline(t *testing.T) {
	t.Parallel()
	ns := testnet.NewNamespace(t, "node")
	in, writer := io.Pipe()
	defer writer.Close()
	go func() {
		_, _ = io.WriteString(writer, `{"run":"x","node":"a","proto":6,"to":"10.96.0.1:80","tag":3,"for":100000000}`+"\n")
	}()
	var out strings.Builder
	if err := ns.Do(func() error { return remote.Serve(t.Context(), in, &out, observe.Config{Namespaces: []string{}}) }); err != nil || !strings.Contains(out.String(), `{"done"`) {
		t.Errorf("%v\n%s", err, &out)
	}
}

// TestUnwatched: a node that fails is not watched, with its reason, and the way ends there as "not watched", never as lost.
func TestUnwatched(t *testing.T) {
	t.Parallel()
	c := twonodes.New(t, true, twonodes.NFTables)
	p := plan(c, api.TCP) // no server, so no answer: the endpoint refuses
	c.Run(c.Nodes[1], "table ip f {\nchain c {\ntype filter hook forward priority 0;\ntcp dport 8080 drop\n}\n}", "nft", "-f", "-")
	p.Orders[0].Send.Patience = 300 * time.Millisecond
	whole := p.Transport
	p.Transport = func(ctx context.Context, node string, in io.Reader, out io.Writer) error {
		if node == "node-2" {
			return errors.New("pods/exec is forbidden")
		}
		return whole(ctx, node, in, out)
	}
	r, err := remote.Probe(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	w := trace.Follow(r.Record)
	if w.End.Class != trace.NotLooked || fmt.Sprint(r.NotWatched) != "[node-2]" || !strings.Contains(fmt.Sprint(r.Errors["node-2"]), "forbidden") {
		t.Errorf("end %+v, not watched %v, errors %v", w.End, r.NotWatched, r.Errors)
	}
}

// TestBadNodes: whatever a node writes, the probe ends, and no node speaks for another one.
func TestBadNodes(t *testing.T) {
	t.Parallel()
	for name, node := range map[string]func(ctx context.Context, in io.Reader, out io.Writer) error{
		"writes no JSON": func(_ context.Context, _ io.Reader, out io.Writer) error {
			_, err := io.WriteString(out, "hello")
			return err
		},
		"speaks for another": func(_ context.Context, _ io.Reader, out io.Writer) error {
			_, err := io.WriteString(out, `{"armed":{"node":"x"}}{"observation":{"node":"x","source":"node"}}{"done":{"node":"x"}}`)
			return err
		},
		"is cut off": func(_ context.Context, _ io.Reader, out io.Writer) error {
			_, err := io.WriteString(out, `{"armed":{"node":"x"}}`)
			return err
		},
		"reads nothing": func(ctx context.Context, _ io.Reader, out io.Writer) error {
			_, _ = io.WriteString(out, `{"armed":{"node":"x"}}`)
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		o := trace.Order{Run: "x", Node: "a", Proto: 6, To: netip.MustParseAddrPort("10.96.0.1:80"), Tag: 3}
		r, err := remote.Probe(ctx, remote.Plan{
			Orders:    []trace.Order{o},
			Transport: func(ctx context.Context, _ string, in io.Reader, out io.Writer) error { return node(ctx, in, out) },
			Send:      func(context.Context) trace.Heard { return trace.Heard{Outcome: trace.Silent} },
		})
		cancel()
		for _, o := range r.Observations {
			if o.Node != "a" {
				t.Errorf("%s: an observation of node %q", name, o.Node)
			}
		}
		if failed := err != nil || len(r.Errors) > 0; failed == (name == "speaks for another") {
			t.Errorf("%s: %v, errors %v", name, err, r.Errors)
		}
	}
}

// TestServe: Serve refuses a wrong order and an unknown command, and ends with its input.
func TestServe(t *testing.T) {
	t.Parallel()
	ns := testnet.NewNamespace(t, "node")
	const order = `{"run":"x","node":"a","proto":6,"to":"10.96.0.1:80","tag":3}` + "\n"
	for in, want := range map[string]string{"": "EOF", "{}\n": "run", `{"shell":"sh"}` + "\n": "unknown field", order + "send\n": "send", order: "", order + "stop\n": ""} {
		var out strings.Builder
		err := ns.Do(func() error {
			return remote.Serve(t.Context(), strings.NewReader(in), &out, observe.Config{Namespaces: []string{}})
		})
		if want == "" && (err != nil || !strings.Contains(out.String(), `{"done":{"node":"a"}}`)) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v\n%s", in, err, &out)
		}
	}
}
