package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

// health compares the answers to load balancers on each Service's healthCheckNodePort, for Services whose answers must
// be equal: those with IPv4 only and without a ready endpoint that terminates, at the node's main address.
// docs/kube-proxy-differences.md explains the others.
func (o *oracle) health(in objects) []difference {
	var out []difference
	w := &scenario.World
	for _, obj := range in {
		svc, ok := obj.(*corev1.Service)
		if !ok || svc.Spec.HealthCheckNodePort == 0 || len(svc.Labels) > 0 || o.config.name == rangeOnly ||
			!slices.Equal(svc.Spec.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol}) || !plain(in, svc.Name) {
			continue
		}
		for _, to := range []netip.Addr{w.Node.V4} {
			at := netip.AddrPortFrom(to, uint16(svc.Spec.HealthCheckNodePort))
			var theirs, ours string
			// Both programs update these answers some time after the kernel. kube-proxy may find the port in use by
			// its own old server of another Service. Then it tries again after its next pass, 30 s later.
			for deadline := time.Now().Add(catchUp); ; time.Sleep(20 * time.Millisecond) {
				theirs, ours = o.theirs.check(at), o.ours.check(at)
				if theirs == ours || time.Now().After(deadline) {
					break
				}
			}
			if theirs != ours {
				p := packet(scenario.From{Place: w.Outside.Name, Addr: w.Outside.Addr(to.Is4())}, service.Key{Addr: at, Proto: api.TCP})
				p.Text = "health check of " + svc.Name + " at " + at.String()
				out = append(out, difference{packet: p,
					theirs: observation{verdicts: []string{theirs}}, ours: observation{verdicts: []string{ours}}})
			}
		}
	}
	return out
}

// plain reports whether a Service has endpoints of IPv4 only, and none that terminates.
func plain(in objects, name string) bool {
	for _, obj := range in {
		s, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || s.Labels[discoveryv1.LabelServiceName] != name {
			continue
		}
		for _, e := range s.Endpoints {
			if s.AddressType != discoveryv1.AddressTypeIPv4 || e.Conditions.Terminating != nil {
				return false
			}
		}
	}
	return true
}

// check asks like a load balancer. It returns status, weight and body, or that the port is closed.
func (tw *twin) check(at netip.AddrPort) string {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			err = tw.hosts[scenario.World.Outside.V4].Do(func() error {
				conn, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", at.String())
				return err
			})
			return conn, err
		},
	}}
	resp, err := client.Get("http://" + at.String() + "/")
	if err != nil {
		return "no HTTP answer"
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	var fields map[string]any
	if err := json.Unmarshal(body, &fields); err != nil {
		return fmt.Sprintf("%d with the body %q", resp.StatusCode, body)
	}
	return fmt.Sprintf("%d, %s, weight %q, %v", resp.StatusCode, resp.Header.Get("Content-Type"), resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), fields)
}
