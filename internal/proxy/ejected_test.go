package proxy

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// seeing is a datapath that sees connections fail.
type seeing struct {
	datapath.Datapath
	ejected []datapath.Ejection
}

func (s *seeing) Ejected(context.Context) ([]datapath.Ejection, error) { return s.ejected, nil }

// TestEjected: endpoints that fail connections leave the table, also for the rules of the kernel, and come back.
func TestEjected(t *testing.T) {
	l, a := newBuild(func() service.Facts { return service.Facts{Node: service.Node{Ejection: 1e10}} })
	log, dp := &bytes.Buffer{}, &seeing{}
	l.cfg.Datapath, l.cfg.Log = dp, slog.New(slog.NewTextHandler(log, nil))
	web, other := a.set(1), a.set(2)
	port := a.services[web].Ports[0]
	slice := &service.Slice{Name: web, Service: web, Ports: []service.SlicePort{{Name: port.Name, Proto: port.Proto, Port: 8080}}}
	for _, addr := range []string{"10.244.2.5", "10.244.2.6", "10.244.2.7"} {
		slice.Endpoints = append(slice.Endpoints, service.SliceEndpoint{Addr: netip.MustParseAddr(addr), Node: "node-2", Ready: true, Serving: true})
	}
	a.slices[web] = []*service.Slice{slice}
	l.build()
	before := l.table
	one := datapath.Ejection{Endpoint: netip.MustParseAddrPort("10.244.2.6:8080"), Reason: "refused"}
	two := datapath.Ejection{Endpoint: netip.MustParseAddrPort("10.244.2.7:8080"), Reason: "no answer"}
	for _, step := range []struct {
		ejected          []datapath.Ejection
		changed          bool
		want, spare, log int
	}{
		{nil, false, 3, 1, 0},
		{[]datapath.Ejection{one}, true, 2, 0, 1},
		{[]datapath.Ejection{one}, false, 2, 0, 0},
		{[]datapath.Ejection{one, two}, true, 2, 0, 1}, // at least half stay
		{nil, true, 3, 1, 0},
	} {
		dp.ejected = step.ejected
		log.Reset()
		if changed := l.readEjected(t.Context()); changed != step.changed {
			t.Errorf("%v: changed %v", step.ejected, changed)
		}
		l.build()
		r := l.table.Entry(web).Frontends[0].Internal
		if len(r.Endpoints) != step.want || r.Spare != step.spare {
			t.Errorf("%v: %d endpoints, %d to spare, want %d and %d", step.ejected, len(r.Endpoints), r.Spare, step.want, step.spare)
		}
		if n := strings.Count(log.String(), web.String()); n != step.log {
			t.Errorf("%v: %d lines in the log name the Service, want %d:\n%s", step.ejected, n, step.log, log)
		}
	}
	if l.table.Entry(other) != before.Entry(other) {
		t.Error("a Service without the endpoints was compiled again")
	}
	var counted dto.Metric
	if err := l.cfg.Metrics.ejections.Write(&counted); err != nil || counted.GetCounter().GetValue() != 2 {
		t.Errorf("%v ejections were counted, want 2: %v", counted.GetCounter().GetValue(), err)
	}
}
