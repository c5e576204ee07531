package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
)

// allocate returns the bind ports for the wanted ports, by the UID of a Gateway. A wanted port keeps its bind port. A new
// one gets the next free bind port after the last one, so that a freed port is not soon another Gateway's. Ports beyond
// the range get none.
func allocate(have map[string]portMap, wanted map[string][]gateway.BindKey, last uint16) (map[string]portMap, uint16) {
	all, used := map[string]portMap{}, map[uint16]bool{}
	for uid, keys := range wanted {
		ports := portMap{}
		for _, key := range keys {
			if bind, ok := have[uid][key]; ok && !used[bind] {
				ports[key], used[bind] = bind, true
			}
		}
		all[uid] = ports
	}
	for _, uid := range slices.Sorted(maps.Keys(wanted)) {
		for _, key := range wanted[uid] {
			if _, ok := all[uid][key]; ok || len(used) > lastBind-firstBind {
				continue
			}
			for last = nextBind(last); used[last]; last = nextBind(last) {
			}
			all[uid][key], used[last] = last, true
		}
	}
	return all, last
}

func nextBind(last uint16) uint16 {
	if last < firstBind || last >= lastBind {
		return firstBind
	}
	return last + 1
}

// writeBinds writes the bind ports. The resourceVersion makes the write fail if another controller has written.
func writeBinds(ctx context.Context, s *kube.Store, namespace string, ports map[string]portMap) error {
	ctx, cancel := context.WithTimeout(ctx, kube.StatusTimeout)
	defer cancel()
	client := s.Config().Client.CoreV1().ConfigMaps(namespace)
	o, err := client.Get(ctx, bindsName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the ConfigMap %s/%s: %w [the component gateway has it]", namespace, bindsName, err)
	}
	o.Data = map[string]string{}
	for uid, ports := range ports {
		if len(ports) > 0 {
			o.Data[uid] = formatPorts(ports)
		}
	}
	if _, err := client.Update(ctx, o, metav1.UpdateOptions{FieldManager: owner}); err != nil {
		return fmt.Errorf("write the ConfigMap %s/%s: %w", namespace, bindsName, err)
	}
	return nil
}
