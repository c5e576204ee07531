package rfc2136

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/dns/names/plan"
	"github.com/fairway-net/fairway/internal/testing/nameserver"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// A world is a server with the zones example.org and lab.example.org, and a client.
type world struct {
	t *testing.T
	n *testnet.Namespace
	*Client
	key Key
	cfg plan.Config
}

// records are those of people and of others.
const records = `manual A 192.0.2.7
www.other A 192.0.2.8
a-www.other TXT "heritage=external-dns,external-dns/owner=them,external-dns/resource=service/x/y"
quoted TXT "a \"quoted\" \\ text" "and more"
lab NS ns1.lab
`

func newWorld(t *testing.T, kind string) *world {
	t.Helper()
	w := &world{t: t, n: testnet.NewNamespace(t, kind), key: Key{nameserver.KeyName, nameserver.Algorithm, nameserver.Secret}}
	zones := []string{"example.org", "lab.example.org"}
	s := nameserver.Start(t, w.n, nameserver.Config{Kind: kind, Zones: zones, Records: records})
	w.Client = New(Config{Server: s.Addr, Zones: zones, Key: func() (Key, error) { return w.key, nil }})
	w.cfg = plan.Config{Registry: plan.Registry{Owner: "me", Prefix: "own."}, Policy: plan.Sync, TTL: 300}
	return w
}

// do runs f in the server's namespace.
func (w *world) do(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	return w.n.Do(func() error { return f(ctx) })
}

// existing reads the server.
func (w *world) existing(c *Client) (all []plan.Set) {
	w.t.Helper()
	if err := w.do(func(ctx context.Context) (err error) { all, err = c.Records(ctx); return err }); err != nil {
		w.t.Fatal(err)
	}
	return all
}

// plan makes a plan for lines NAME TYPE VALUES.
func (w *world) plan(c *Client, lines ...string) plan.Plan {
	w.t.Helper()
	in := plan.Input{Existing: w.existing(c), Zones: c.Zones(), Names: len(lines), Listed: map[string]bool{"service": true}}
	for _, line := range lines {
		f := strings.Fields(line)
		in.Wants = append(in.Wants, plan.Want{Set: plan.Set{Name: f[0], Type: f[1], Values: strings.Split(f[2], ",")}, By: names.Ref{Kind: "Service", Namespace: "prod", Name: "web"}})
	}
	return plan.New(w.cfg, in)
}

func (w *world) apply(c *Client, p plan.Plan) (made int, lost []string) {
	w.t.Helper()
	if err := w.do(func(ctx context.Context) (err error) { made, lost, err = c.Apply(ctx, p.Changes); return err }); err != nil {
		w.t.Fatal(err)
	}
	return made, lost
}

// text returns the records A, AAAA, CNAME and TXT, sorted.
func (w *world) text() string {
	var lines []string
	for _, s := range w.existing(w.Client) {
		if slices.Contains(plan.Types, s.Type) || s.Type == "TXT" {
			lines = append(lines, fmt.Sprintf("%v %d", s, s.TTL))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// each runs a test with each server.
func each(t *testing.T, f func(*world)) {
	for _, kind := range nameserver.Kinds {
		t.Run(kind, func(t *testing.T) { f(newWorld(t, kind)) })
	}
}

// TestSync: records come, change and go together with their owners, in two zones, and those of others stay.
func TestSync(t *testing.T) {
	each(t, func(w *world) {
		before := w.text()
		want := func(text string, lines ...string) {
			t.Helper()
			p := w.plan(w.Client, lines...)
			made, lost := w.apply(w.Client, p)
			if made != len(p.Changes) || len(lost) > 0 {
				w.t.Errorf("%d of %d changes made, lost %v", made, len(p.Changes), lost)
			}
			if again := w.plan(w.Client, lines...); len(again.Changes) > 0 {
				w.t.Errorf("a second plan: %v", again.Changes)
			}
			got := strings.Split(w.text(), "\n")
			for _, line := range strings.Split(before, "\n") {
				if i := slices.Index(got, line); i < 0 {
					w.t.Errorf("lost: %s", line)
				} else {
					got = slices.Delete(got, i, i+1)
				}
			}
			if got := strings.Join(got, "\n"); got != strings.TrimSpace(text) {
				w.t.Errorf("got:\n%s\nwant:\n%s", got, text)
			}
		}
		const by = `TXT heritage=external-dns,external-dns/owner=me,external-dns/resource=service/prod/web 300`
		want(`
*.apps.example.org A 192.0.2.3 300
alias.example.org CNAME lb.example.com 300
own.a-*.apps.example.org `+by+`
own.a-www.example.org `+by+`
own.a-www.lab.example.org `+by+`
own.aaaa-www.example.org `+by+`
own.cname-alias.example.org `+by+`
www.example.org A 192.0.2.1,192.0.2.2 300
www.example.org AAAA 2001:db8::1 300
www.lab.example.org A 192.0.2.4 300`, "www.example.org A 192.0.2.1,192.0.2.2", "www.example.org AAAA 2001:db8::1", "alias.example.org CNAME lb.example.com",
			"*.apps.example.org A 192.0.2.3", "www.lab.example.org A 192.0.2.4", "manual.example.org A 192.0.2.1", "www.other.example.org AAAA 2001:db8::9")
		want(`
alias.example.org A 192.0.2.9 300
own.a-alias.example.org `+by+`
own.cname-www.example.org `+by+`
www.example.org CNAME lb.example.com 300`, "www.example.org CNAME lb.example.com", "alias.example.org A 192.0.2.9")
		w.cfg.RemoveUnlisted = true
		want("")
	})
}

// TestTwoWriters: a plan that another writer has overtaken changes nothing of that name.
func TestTwoWriters(t *testing.T) {
	each(t, func(w *world) {
		other := New(w.Client.cfg)
		ours := w.plan(w.Client, "www.example.org A 192.0.2.1", "else.example.org A 192.0.2.1")
		w.cfg.Owner = "them"
		w.apply(other, w.plan(other, "www.example.org AAAA 2001:db8::1"))
		w.cfg.Owner = "me"
		if made, lost := w.apply(w.Client, ours); made != 1 || fmt.Sprint(lost) != "[www.example.org]" {
			t.Errorf("%d changes made, lost %v", made, lost)
		}
		if p := w.plan(w.Client, "www.example.org A 192.0.2.1"); len(p.Skipped) != 1 || !strings.Contains(p.Skipped[0].Why, "them") {
			t.Errorf("the next plan: %+v", p)
		}
		// The other way round: a removal of a record that has changed since.
		w.cfg.Owner = "them"
		stale := w.plan(other, "www.example.org A 192.0.2.5")
		w.apply(w.Client, w.plan(w.Client, "www.example.org AAAA 2001:db8::2"))
		if made, lost := w.apply(other, stale); made != 0 || len(lost) != 1 {
			t.Errorf("%d changes made, lost %v", made, lost)
		}
	})
}

// TestSerial: a zone is transferred again only after a change, whoever made it.
func TestSerial(t *testing.T) {
	each(t, func(w *world) {
		other := New(w.Client.cfg)
		w.existing(w.Client)
		first := w.zones["example.org"]
		if w.existing(w.Client); w.zones["example.org"] != first {
			w.t.Error("the unchanged zone is transferred again")
		}
		lab := w.zones["lab.example.org"]
		w.apply(other, w.plan(other, "www.example.org A 192.0.2.1"))
		if p := w.plan(w.Client, "www.example.org A 192.0.2.1"); p.Owned != 1 || w.zones["lab.example.org"] != lab {
			w.t.Errorf("%d records are ours after another writer's change", p.Owned)
		}
		w.zones["example.org"].read = time.Now().Add(-maxAge)
		first = w.zones["example.org"]
		if w.existing(w.Client); w.zones["example.org"] == first {
			w.t.Error("an old zone is not transferred")
		}
	})
}

// TestRefusals: a wrong key, a wrong secret, a wrong zone and no server are errors with advice, and change nothing.
func TestRefusals(t *testing.T) {
	each(t, func(w *world) {
		good, zones := w.key, w.Client.cfg.Zones
		p := w.plan(w.Client, "www.example.org A 192.0.2.1")
		for name, test := range map[string]struct {
			change func()
			want   string
		}{
			"unknown key":  {func() { w.key.Name = "other" }, "[compare --rfc2136-tsig-keyname"},
			"wrong secret": {func() { w.key.Secret = "d3Jvbmc=" }, "[compare --rfc2136-tsig-keyname"},
			"no key":       {func() { w.key = Key{} }, "[does the server have the zone, and may the key transfer it?]"},
			"other zone":   {func() { w.Client.cfg.Zones = []string{"example.com"} }, "[does the server have the zone, and may the key transfer it?]"},
			"no server":    {func() { w.Client.cfg.Server = "127.0.0.1:54" }, "[--rfc2136-host, --rfc2136-port]"},
			"no secret":    {func() { w.key.Secret = "%" }, "base64"},
		} {
			server := w.Client.cfg.Server
			w.zones = map[string]*content{} // the serial number needs no key
			test.change()
			err := w.do(func(ctx context.Context) error { _, err := w.Client.Records(ctx); return err })
			if err == nil || !strings.Contains(err.Error(), test.want) {
				w.t.Errorf("%s: %v", name, err)
			}
			w.key, w.Client.cfg.Zones, w.Client.cfg.Server = good, zones, server
		}
		w.existing(w.Client)
		w.key = Key{}
		err := w.do(func(ctx context.Context) error { _, _, err := w.Client.Apply(ctx, p.Changes); return err })
		var refusal *Refusal
		if !errors.As(err, &refusal) || !strings.Contains(err.Error(), "[may the key write") {
			w.t.Errorf("an update without a key: %v", err)
		}
		w.key = good
		if strings.Contains(w.text(), "www.example.org") {
			w.t.Error("the record is there")
		}
	})
}

// TestMany: 1,000 names in one pass, and a zone that does not fit into one message.
func TestMany(t *testing.T) {
	each(t, func(w *world) {
		var lines []string
		for i := range 1000 {
			lines = append(lines, fmt.Sprintf("n%d.example.org A 192.0.2.1,192.0.2.2,192.0.2.3", i))
		}
		p, start := w.plan(w.Client, lines...), time.Now()
		if made, lost := w.apply(w.Client, p); made != 1000 || len(lost) > 0 {
			w.t.Errorf("%d made, lost %v", made, lost)
		}
		w.t.Logf("1,000 names in %v", time.Since(start))
		if again := w.plan(w.Client, lines...); len(again.Changes) > 0 || again.Owned != 1000 {
			w.t.Errorf("%d further changes, %d owned", len(again.Changes), again.Owned)
		}
	})
}
