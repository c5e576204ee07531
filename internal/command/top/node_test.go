package top

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/flow/top"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

const patience = 5 * time.Second

// A rig is a node in mode nftables with two Services: web answers, and gone has no endpoint.
type rig struct {
	t         *testing.T
	host      *testnet.Host
	client    *testnet.Host
	reader    *reader
	endpoints []netip.AddrPort
}

var (
	webAddr  = netip.MustParseAddrPort("10.96.0.1:80")
	goneAddr = netip.MustParseAddrPort("10.96.0.2:80")
	webName  = api.PortName{Name: api.Name{Namespace: "shop", Name: "web"}, Port: "http"}
	goneName = api.PortName{Name: api.Name{Namespace: "shop", Name: "gone"}}
)

func newRig(t *testing.T) *rig {
	r := &rig{t: t, reader: newReader()}
	t.Cleanup(r.reader.close)
	net := testnet.New(t)
	r.host = net.Node("node-1")
	route := &service.Route{}
	for i := range 2 {
		a := netip.AddrFrom4([4]byte{10, 244, 1, byte(5 + i)})
		at := netip.AddrPortFrom(a, 8080)
		net.Pod(r.host, fmt.Sprint("web-", i), a).Serve("tcp", at)
		route.Endpoints = append(route.Endpoints, service.Endpoint{Addr: at, Local: true})
		r.endpoints = append(r.endpoints, at)
	}
	r.client = net.Pod(r.host, "client", netip.MustParseAddr("10.244.1.100"))
	refuse := &service.Route{Action: service.Reject}
	table := service.NewTable(service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, []*service.Frontend{
		{Addr: webAddr, Proto: api.TCP, ClusterIP: true, Service: webName, Internal: route, External: route},
		{Addr: goneAddr, Proto: api.TCP, ClusterIP: true, Service: goneName, Internal: refuse, External: refuse},
	})
	dp, err := nftables.New(nftables.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dp.Close()
	r.do(func() error { _, err := dp.Sync(context.Background(), table); return err })
	return r
}

func (r *rig) do(f func() error) {
	r.t.Helper()
	if err := r.host.Do(f); err != nil {
		r.t.Fatal(err)
	}
}

// sample reads a sample on the node, as JSON and back.
func (r *rig) sample(of api.Name) *top.Sample {
	r.t.Helper()
	var s *top.Sample
	r.do(func() (err error) { s, err = r.reader.sample(context.Background(), of); return err })
	text, err := json.Marshal(s)
	if err != nil {
		r.t.Fatal(err)
	}
	again := &top.Sample{}
	if err := json.Unmarshal(text, again); err != nil {
		r.t.Fatal(err)
	}
	if err := again.Check(); err != nil {
		r.t.Errorf("%s: %v", text, err)
	}
	return again
}

func (r *rig) figures(s *top.Sample, name api.PortName) top.Figures {
	for _, f := range s.Services {
		if f.Service == name.String() {
			return f.Figures
		}
	}
	return top.Figures{}
}

func (r *rig) open(n int) (all []*testnet.Conn) {
	r.t.Helper()
	for range n {
		c, err := r.client.Dial("tcp", webAddr, patience)
		if err != nil {
			r.t.Fatal(err)
		}
		if got := c.Ask(patience); got.Outcome != testnet.Answered {
			r.t.Fatal(got)
		}
		all = append(all, c)
	}
	return all
}

// TestSample: a node counts open, new and ended connections, bytes once accounting is on, endpoints of the Service that
// was asked for, and rejected packets.
func TestSample(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.open(3)
	first := r.sample(api.Name{})
	if got, want := r.figures(first, webName), (top.Figures{Connections: 3}); got != want || first.CountsBytes || !first.CountsRejects || !first.CountsDrops {
		t.Errorf("first sample: %+v, want %+v of web", first, want)
	}
	if err := r.host.Sysctl("netfilter/nf_conntrack_acct", "1"); err != nil {
		t.Fatal(err)
	}
	for _, c := range before {
		if err := c.End(patience); err != nil {
			t.Fatal(err)
		}
	}
	r.open(5)
	for range 4 {
		if got := r.client.Ask("tcp", goneAddr, patience); got.Outcome != testnet.Refused {
			t.Fatal(got)
		}
	}
	second := r.sample(webName.Name)
	got := r.figures(second, webName)
	if got.Connections != 5 || got.New != 5 || got.Bytes < 5*200 || !second.CountsBytes || second.Millis <= first.Millis || second.Run != first.Run {
		t.Errorf("second sample: %+v of web in %+v", got, second)
	}
	if got := r.figures(second, goneName); got.Rejects != 4 || got.Connections != 0 {
		t.Errorf("second sample: %+v of gone", got)
	}
	sum := top.Figures{}
	for _, e := range second.Endpoints {
		sum.Connections += e.Connections
		sum.New += e.New
		sum.Bytes += e.Bytes
		if e.Addr != r.endpoints[0] && e.Addr != r.endpoints[1] {
			t.Errorf("endpoint %v", e.Addr)
		}
	}
	if sum != got {
		t.Errorf("endpoints have %+v together, the Service %+v", sum, got)
	}
}

// TestShare: a node that needs long for a sample waits before the next one.
func TestShare(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sample(api.Name{})
	r.reader.next = time.Now().Add(300 * time.Millisecond)
	begin := time.Now()
	r.sample(api.Name{})
	if took := time.Since(begin); took < 250*time.Millisecond {
		t.Errorf("the next sample came after %v", took)
	}
}

// TestServe: each line gets an answer, an empty input gets one, and other input is an error.
func TestServe(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "1 /",
		"sample\n":                  "1 /",
		"sample\nsample shop/web\n": "1 /, 2 shop/web",
		"sample shop\n":             "error",
		"explode\n":                 "error",
		"\n":                        "error",
		strings.Repeat("x", 10000):  "error",
	} {
		n, got := 0, []string{}
		var out bytes.Buffer
		err := serve(t.Context(), strings.NewReader(in), &out, func(_ context.Context, of api.Name) (*top.Sample, error) {
			n++
			got = append(got, fmt.Sprintf("%d %s", n, of))
			return &top.Sample{}, nil
		})
		if err != nil {
			got = []string{"error"}
		}
		if strings.Join(got, ", ") != want || err == nil && strings.Count(out.String(), "\n") != n {
			t.Errorf("%q: %v, %v; output %q", in, got, err, &out)
		}
	}
}

// TestAsk: fairway top and top-node together: the figures of the node come back, a node that fails is tried again, and
// everything ends with the context.
func TestAsk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	failures := 1
	a := newAsker(func(ctx context.Context, node string, in io.Reader, out io.Writer) error {
		if failures--; failures >= 0 {
			return fmt.Errorf("no way to %s", node)
		}
		return r.host.Do(func() error { return serve(ctx, in, out, r.reader.sample) })
	}, 100*time.Millisecond)
	a.follow(webName.Name)
	ended := make(chan struct{})
	go func() {
		a.run(ctx, []string{"node-1"})
		close(ended)
	}()
	if one := <-a.answers; one.err == nil || !strings.Contains(one.err.Error(), "no way to node-1") {
		t.Errorf("the failure is %+v", one)
	}
	s := &session{asker: a, view: top.New(a.interval, []string{"node-1"}), query: top.Query{Namespace: "shop", Sort: top.ByNew}}
	s.take(<-a.answers)
	r.open(7)
	s.take(<-a.answers)
	s.take(<-a.answers)
	f := s.frame(time.Now()).services
	if len(f.Rows) != 1 || f.Rows[0].Connections != 7 || f.Rows[0].New == nil || *f.Rows[0].New != 7 || f.Rows[0].Bytes != nil {
		t.Errorf("frame %+v", f)
	}
	if len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "nf_conntrack_acct=1") {
		t.Errorf("notes %q", f.Notes)
	}
	s.query.Service = webName.Name
	if f := s.frame(time.Now()).services; len(f.Rows) == 0 || f.Rows[0].Endpoint == nil {
		t.Errorf("endpoints %+v", f)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("it does not end with its context")
	}
}
