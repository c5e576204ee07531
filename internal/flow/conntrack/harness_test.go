package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A want describes an entry to create: the client, its destination (the frontend), and the endpoint that answers.
type want struct {
	proto            api.Proto
	client, to, by   netip.AddrPort
	zone             uint16
	zoneOrig         uint16 // of the original direction only
	masqueradedAs    netip.AddrPort
	timeoutInSeconds uint32 // 0 means an hour
}

func (w want) String() string {
	return fmt.Sprintf("%v %v > %v > %v zone %d/%d", w.proto, w.client, w.to, w.by, w.zone, w.zoneOrig)
}

// creation returns the request that creates the entry.
func (w want) creation() message {
	back := w.client
	if w.masqueradedAs.IsValid() {
		back = w.masqueradedAs
	}
	m := newMessage(ctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, w.to.Addr().Is4())
	m = m.nest(ctaTupleOrig, func(m message) message { return m.both(w.proto, w.client, w.to, w.zoneOrig) })
	m = m.nest(ctaTupleReply, func(m message) message { return m.both(w.proto, w.by, back, 0) })
	timeout := w.timeoutInSeconds
	if timeout == 0 {
		timeout = 3600
	}
	m = m.attr(ctaTimeout, binary.BigEndian.AppendUint32(nil, timeout)...)
	if w.zone != 0 {
		m = m.attr(ctaZone, binary.BigEndian.AppendUint16(nil, w.zone)...)
	}
	return m
}

func (m message) both(p api.Proto, src, dst netip.AddrPort, zone uint16) message {
	m = m.nest(ctaTupleIP, func(m message) message {
		if src.Addr().Is4() {
			return m.attr(ctaIPv4Src, src.Addr().AsSlice()...).attr(ctaIPv4Dst, dst.Addr().AsSlice()...)
		}
		return m.attr(ctaIPv6Src, src.Addr().AsSlice()...).attr(ctaIPv6Dst, dst.Addr().AsSlice()...)
	})
	m = m.nest(ctaTupleProto, func(m message) message {
		m = m.attr(ctaProtoNum, byte(p))
		m = m.attr(ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, src.Port())...)
		return m.attr(ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, dst.Port())...)
	})
	if zone != 0 {
		m = m.attr(ctaTupleZone, binary.BigEndian.AppendUint16(nil, zone)...)
	}
	return m
}

// A world is a namespace with a Table in it.
type world struct {
	*Table
	ns     *testnet.Namespace
	t      testing.TB
	socket *socket // the test's own socket
	log    *strings.Builder
}

func newWorld(t testing.TB, ns *testnet.Namespace, cfg Config) *world {
	t.Helper()
	w := &world{ns: ns, t: t, log: &strings.Builder{}}
	cfg.Log = slog.New(slog.NewTextHandler(w.log, nil))
	w.Table = New(cfg)
	w.do(func() (err error) {
		w.socket, err = newSocket()
		return err
	})
	t.Cleanup(func() {
		w.socket.close()
		w.Close()
	})
	return w
}

func (w *world) do(f func() error) {
	w.t.Helper()
	if err := w.ns.Do(f); err != nil {
		w.t.Fatal(err)
	}
}

// create creates entries, many at a time.
func (w *world) create(all ...want) {
	w.t.Helper()
	for some := range slices.Chunk(all, requestsAtOnce) {
		var out []byte
		for _, e := range some {
			w.socket.seq++
			out = append(out, e.creation().finish(w.socket.seq)...)
		}
		if err := w.socket.send(out); err != nil {
			w.t.Fatal(err)
		}
		for answers := 0; answers < len(some); {
			err := w.socket.receive(func(_ uint16, _ uint32, body []byte) error {
				answers++
				return status(body)
			})
			if err != nil {
				w.t.Fatalf("create an entry such as %v: %v", some[0], err)
			}
		}
	}
}

// Delete deletes the existing entries of the flows.
func (w *world) Delete(ctx context.Context, flows []flow.Flow) (int, error) {
	found, err := w.Find(ctx, flows)
	if err != nil {
		return 0, err
	}
	return w.Remove(ctx, entries(found))
}

func entries(found []Match) (all []Entry) {
	for _, m := range found {
		all = append(all, m.Entry)
	}
	return all
}

// list reads all entries of both families.
func (w *world) list() (all []entry) {
	w.t.Helper()
	for _, is4 := range []bool{true, false} {
		err := w.socket.dump(w.t.Context(), filter{is4: is4}.request(ctaFilter), func(b []byte) {
			if e, ok := parse(b); ok {
				all = append(all, e.clone())
			}
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return all
}

func (w *world) delete(flows ...flow.Flow) int {
	w.t.Helper()
	var n int
	w.do(func() (err error) {
		n, err = w.Delete(w.t.Context(), flows)
		return err
	})
	return n
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func unspecified(is4 bool) netip.Addr {
	if is4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
