package loadbalancer

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/api"
)

// TestDrainWaits: a drain is done when another node announces what the node announced, or, if forced, when the node
// announces nothing.
func TestDrainWaits(t *testing.T) {
	web := api.Name{Namespace: "shop", Name: "web"}
	server := newMetallbAPI(leftStatus(l2Statuses, "l2-a", "node-1", web))
	d := &Drain{custom: server, namespace: "metallb-system"}
	short := func(elsewhere bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return d.Wait(ctx, "node-1", elsewhere, func(n int) {
			if n == 0 {
				return
			}
			if err := l2Statuses.client(server, "metallb-system").Delete(ctx, "l2-a", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	const want = "node node-1 announces nothing any more, and no other node announces shop/web [fairway status --load-balancers shop/web says why]"
	if err := short(true); err == nil || err.Error() != want {
		t.Errorf("no other node: %v", err)
	}
	put := func(name, node string) {
		t.Helper()
		if _, err := l2Statuses.client(server, "metallb-system").Create(t.Context(), leftStatus(l2Statuses, name, node, web), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	put("l2-a", "node-1")
	if err := short(false); err != nil {
		t.Errorf("forced: %v", err)
	}
	put("l2-a", "node-1")
	put("l2-b", "node-2")
	if err := short(true); err != nil {
		t.Errorf("moved: %v", err)
	}
	put("l2-a", "node-1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.Wait(ctx, "node-1", true, func(int) {}); err == nil || !strings.HasPrefix(err.Error(), "1 Services are still announced by node node-1") {
		t.Errorf("still announced: %v", err)
	}
}
