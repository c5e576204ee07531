package conntrack

import (
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestMarkForReset: the entries get the mark and a timeout, and keep their other attributes. Other entries do not
// change.
func TestMarkForReset(t *testing.T) {
	w := newWorld(t, testnet.NewNamespace(t, "node"), Config{})
	const mark, marked = 0x0800_0000, 0x4000
	e := want{proto: api.UDP, client: ap("10.9.9.9:4000"), to: ap("10.96.0.10:53"), by: ap("10.244.1.5:53")}
	six := want{proto: api.UDP, client: ap("[fd00:9::9]:4000"), to: ap("[fd00:96::10]:53"), by: ap("[fd00:244::5]:53")}
	other := e
	other.client, other.by = ap("10.9.9.9:4001"), ap("10.244.1.6:53")
	w.create(e, six, other)
	if _, err := w.MarkForReset(t.Context(), w.find(flow.Flow{Proto: e.proto, Frontend: e.to, Endpoint: e.by}), marked, time.Hour); err != nil {
		t.Fatal(err)
	}
	all := w.find(flow.Flow{Proto: e.proto, Frontend: e.to, Endpoint: e.by}, flow.Flow{Proto: e.proto, Frontend: six.to, Endpoint: six.by})
	if n, err := w.MarkForReset(t.Context(), all, mark, time.Second); n != 1 || err != nil {
		t.Errorf("%d marked, %v; want one, the other was marked before", n, err)
	}
	for _, got := range w.list() {
		want := map[bool]uint32{true: mark}[got.orig.src == six.client] | map[bool]uint32{true: marked}[got.orig.src == e.client]
		if got.mark != want || (Entry{got}).MarkedForReset() != (want != 0) {
			t.Errorf("%v has mark %#x, status %#x; want mark %#x", got.orig.src, got.mark, got.status, want)
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for len(w.list()) != 2 {
		if time.Now().After(deadline) {
			t.Fatalf("left: %+v, want the one with a second to live to be gone", w.list())
		}
		time.Sleep(50 * time.Millisecond)
	}
	if n, err := w.MarkForReset(t.Context(), all[:1], mark, time.Second); n != 0 || err != nil {
		t.Errorf("%d marked, %v; want none of those that are gone or marked", n, err)
	}
}

// TestAudit reads all entries and finds the wanted ones.
func TestAudit(t *testing.T) {
	for _, k := range kernels {
		w := newWorld(t, testnet.NewNamespace(t, "node"), Config{})
		w.filterAttr = k.attr
		w.create(crowd(100)...)
		tcp := want{proto: api.TCP, client: ap("[fd00:9::9]:4000"), to: ap("[fd00:96::10]:53"), by: ap("[fd00:244::5]:53")}
		zone, sctp := tcp, tcp
		zone.zone, sctp.proto = 7, api.SCTP
		w.create(tcp, zone, sctp)
		seen := map[api.Proto]int{}
		var found []Entry
		w.do(func() (err error) {
			found, err = w.Audit(t.Context(), []api.Proto{api.TCP, api.UDP}, func(e Entry) bool {
				seen[e.Proto()]++
				return e.Endpoint() == tcp.by || e.Frontend() == crowdFrontend(3)
			})
			return err
		})
		if len(seen) != 2 || seen[api.TCP] < 1 || seen[api.UDP] < 100 || len(found) != 2 {
			t.Errorf("%s: asked about %v, found %d; want all TCP and UDP, and one of each found", k.name, seen, len(found))
		}
		if n, err := w.Remove(t.Context(), found); n != 2 || err != nil {
			t.Errorf("%s: %d removed, %v", k.name, n, err)
		}
	}
}

// find lists the entries that match the flows.
func (w *world) find(flows ...flow.Flow) []Entry { return entries(w.matches(flows)) }

func (w *world) matches(flows []flow.Flow) (found []Match) {
	w.t.Helper()
	w.do(func() (err error) {
		found, err = w.Find(w.t.Context(), flows)
		return err
	})
	return found
}
