package cluster_test

import (
	"regexp"
	"time"
)

// scalerManifest scales a Deployment to two pods. One pod uses more than a thousandth of a core, because it starts 50
// processes a second.
const scalerManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: scaled}
spec:
  selector: {matchLabels: {app: scaled}}
  template:
    metadata: {labels: {app: scaled}}
    spec:
      containers: [{name: busy, image: busybox, imagePullPolicy: IfNotPresent, command: [sh, -c, while sleep 0.02; do :; done]}]
      terminationGracePeriodSeconds: 0
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: scaled}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: scaled}
  minReplicas: 1
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: AverageValue, averageValue: 1m}}}]
`

// testMetrics: kubectl top shows the node and its pods, and an autoscaler follows their CPU usage.
func (l *lab) testMetrics() {
	l.input(scalerManifest, "kubectl", "apply", "-f", "-")
	const long = 2 * time.Minute // a kubelet samples every 10 to 20 s, and a rate needs two samples
	for want, args := range map[string][]string{
		`(?m)^node-1 +\d+m +\d+% +\d+Mi +\d+%`: {"kubectl", "top", "node", "node-1"},
		`(?m)^scaled-\S+ +\d+m +\d+Mi`:         {"kubectl", "top", "pods", "-l", "app=scaled"},
	} {
		if out := l.within(long, "m", args...); !regexp.MustCompile(want).MatchString(out) {
			l.Errorf("%v shows\n%s", args, out)
		}
	}
	l.within(long, "2", "kubectl", "get", "deployment", "scaled", "-o", "jsonpath={.status.readyReplicas}")
}
