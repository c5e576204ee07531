package gateway

import (
	"context"
	"log/slog"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/gateway/server"
	kubegateway "github.com/fairway-net/fairway/internal/kube/gateway"
	"github.com/fairway-net/fairway/internal/service"
)

const (
	// firstFetch is how long the first table waits for the Secrets that it names.
	firstFetch = 5 * time.Second
	// applyAgain is the pause before a table is applied again whose ports could not all be opened.
	applyAgain = time.Second
	// maxRest bounds the pause after a pass. The pause is as long as the pass, so passes use half a core at most.
	maxRest = time.Second
)

// A follower keeps the server's table and endpoints equal to the cluster's objects.
type follower struct {
	log      *slog.Logger
	objects  *kubegateway.Objects
	compiler *gateway.Compiler
	server   *server.Server
	facts    service.Facts

	apply    func(server.Table, server.Endpoints) error
	table    *gateway.Table
	services map[api.Name]map[api.PortName][]service.Endpoint // of the Services that routes name
	failure  string                                           // of the last Apply
}

// run follows until ctx ends, which is no error.
func (f *follower) run(ctx context.Context) error {
	late := time.NewTimer(0)
	if !late.Stop() {
		<-late.C
	}
	defer late.Stop()
	waiting := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.objects.Dirty():
		case <-late.C:
			waiting = false
			f.pass(true)
			continue
		}
		start := time.Now()
		switch done := f.pass(false); {
		case !done && !waiting:
			late.Reset(f.pause())
			waiting = true
		case done && waiting:
			late.Stop()
			waiting = false
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(time.Since(start), maxRest)):
		}
	}
}

// pause is the time until a pass that was not complete is repeated.
func (f *follower) pause() time.Duration {
	if f.table == nil {
		return firstFetch
	}
	return applyAgain
}

// pass applies what has changed, and reports whether all of it is served. The first table waits for the Secrets that it
// names, unless they are late. A later one does not, because no route may wait for another route's certificate.
func (f *follower) pass(late bool) bool {
	changed := f.objects.Update(f.compiler)
	table, needs := f.compiler.Table(), f.compiler.Needs()
	if settled := f.objects.Fetch(needs); f.table == nil && !settled && !late {
		return false
	}
	if !f.endpoints(needs.Services, changed) && table == f.table && f.failure == "" {
		return true
	}
	f.table = table
	all := server.Endpoints{}
	for _, ports := range f.services {
		for port, endpoints := range ports {
			all[port] = endpoints
		}
	}
	err, was := f.apply(table, all), f.failure
	f.failure = ""
	if err != nil {
		f.failure = err.Error()
	}
	switch {
	case f.failure != "" && f.failure != was:
		f.log.Warn("some ports cannot be served, will try again", "err", err)
	case f.failure == "" && was != "":
		f.log.Info("all ports are served")
	}
	return err == nil
}

// endpoints computes the endpoints of the named Services that are new or have changed. It reports whether any changed.
func (f *follower) endpoints(names []api.Name, changed map[api.Name]bool) (any bool) {
	services := make(map[api.Name]map[api.PortName][]service.Endpoint, len(names))
	for _, name := range names {
		known, ok := f.services[name]
		if !ok || changed[name] {
			known, any = f.objects.Backends(name, f.facts), true
		}
		services[name] = known
	}
	any = any || len(services) != len(f.services)
	f.services = services
	return any
}
