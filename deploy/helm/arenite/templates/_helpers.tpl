{{- define "arenite.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of the release's objects; also the value of the label arenite.installation. */}}
{{- define "arenite.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "arenite.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "arenite.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "arenite.labels" -}}
{{ include "arenite.common" . }}
app.kubernetes.io/component: {{ include "arenite.component" . }}
{{- end -}}

{{/* What the servers of the mode are. */}}
{{- define "arenite.component" -}}
{{- ternary "node" "control-plane" (eq .Values.mode "nodes") -}}
{{- end -}}

{{/* Labels of all objects. */}}
{{- define "arenite.common" -}}
app.kubernetes.io/name: {{ include "arenite.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* What selects the servers' pods. */}}
{{- define "arenite.selector" -}}
app.kubernetes.io/name: {{ include "arenite.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ include "arenite.component" . }}
{{- end -}}

{{- define "arenite.postgresSelector" -}}
app.kubernetes.io/name: {{ include "arenite.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: postgres
{{- end -}}

{{- define "arenite.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "arenite.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed with serviceAccount.create=false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "arenite.image" -}}
{{- $repository := .Values.image.repository | default (ternary "arenite-node" "arenite" (eq .Values.mode "nodes")) -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "arenite.sandboxNamespace" -}}
{{- default (printf "%s-sandboxes" .Release.Namespace) .Values.sandboxes.namespace -}}
{{- end -}}

{{/* "true" with Postgres, else empty. */}}
{{- define "arenite.hasPostgres" -}}
{{- if or .Values.database.existingSecret .Values.database.url .Values.postgres.enabled -}}true{{- end -}}
{{- end -}}

{{- define "arenite.databaseSecret" -}}
{{- default (printf "%s-database" (include "arenite.fullname" .)) .Values.database.existingSecret -}}
{{- end -}}

{{- define "arenite.databaseSecretKey" -}}
{{- if .Values.database.existingSecret -}}{{ .Values.database.secretKey }}{{- else -}}url{{- end -}}
{{- end -}}

{{/* The Secret with the API key; empty if callers have keys of tenants only. */}}
{{- define "arenite.apiKeySecret" -}}
{{- if .Values.apiKey.existingSecret -}}
{{- .Values.apiKey.existingSecret -}}
{{- else if .Values.apiKey.create -}}
{{- printf "%s-api-key" (include "arenite.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "arenite.apiKeySecretKey" -}}
{{- if .Values.apiKey.existingSecret -}}{{ .Values.apiKey.secretKey }}{{- else -}}api-key{{- end -}}
{{- end -}}

{{- define "arenite.identitySecret" -}}
{{- default (printf "%s-identity" (include "arenite.fullname" .)) .Values.identity.existingSecret -}}
{{- end -}}

{{- define "arenite.identitySecretKey" -}}
{{- if .Values.identity.existingSecret -}}{{ .Values.identity.secretKey }}{{- else -}}identity.pem{{- end -}}
{{- end -}}

{{/* "true" if the server's private key is in a Secret, else empty: then it is in the data directory. */}}
{{- define "arenite.hasIdentitySecret" -}}
{{- if and (eq .Values.mode "pods") (or .Values.identity.existingSecret (include "arenite.hasPostgres" .)) -}}true{{- end -}}
{{- end -}}

{{/* One entry of a Secret that an earlier installation created; empty if there is none. Takes a list: context, name, key. */}}
{{- define "arenite.kept" -}}
{{- $context := index . 0 -}}
{{- $secret := lookup "v1" "Secret" $context.Release.Namespace (index . 1) -}}
{{- if $secret -}}
{{- get ($secret.data | default dict) (index . 2) | b64dec -}}
{{- end -}}
{{- end -}}

{{/* A map as a list of NAME=VALUE. */}}
{{- define "arenite.pairs" -}}
{{- $pairs := list -}}
{{- range $name, $value := . -}}
{{- $pairs = append $pairs (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- toJson $pairs -}}
{{- end -}}

{{/* What the pods of sandboxes have in addition; empty if that is nothing. */}}
{{- define "arenite.podTemplate" -}}
{{- $template := deepCopy .Values.sandboxes.podTemplate -}}
{{- with .Values.sandboxes.nodeSelector -}}
{{- $template = mergeOverwrite $template (dict "spec" (dict "nodeSelector" .)) -}}
{{- end -}}
{{- with $template }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* arenite.toml: what the chart sets, and under it `settings`. The values are text, numbers, booleans, and lists of them, which
     have the same form in JSON and TOML. */}}
{{- define "arenite.toml" -}}
{{- $name := include "arenite.fullname" . -}}
{{- $service := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) -}}
{{- $all := dict
  "listen" (list "0.0.0.0:8080")
  "agentflow_listen" "off"
  "allowed_host" (concat $service .Values.hosts)
  "tenants" .Values.tenants
-}}
{{- if eq .Values.mode "nodes" }}
{{- $_ := mergeOverwrite $all (dict "engine" "namespace") -}}
{{- with .Values.networkPolicy.deny }}{{- $_ := set $all "deny" . }}{{- end -}}
{{- else }}
{{- $_ := mergeOverwrite $all (dict
  "engine" "kubernetes"
  "data_dir" "/data/arenite"
  "kubernetes_name" $name
  "kubernetes_namespace" (include "arenite.sandboxNamespace" .)
  "kubernetes_guest_image" (default (include "arenite.image" .) .Values.sandboxes.guestImage)
  "kubernetes_network_policies" .Values.networkPolicy.enabled
) -}}
{{- with .Values.sandboxes.images }}{{- $_ := set $all "kubernetes_image" (include "arenite.pairs" . | fromJsonArray) }}{{- end -}}
{{- with .Values.sandboxes.runtimeClasses }}{{- $_ := set $all "kubernetes_runtime_class" (include "arenite.pairs" . | fromJsonArray) }}{{- end -}}
{{- with .Values.agentSandbox.warmPools }}{{- $_ := set $all "kubernetes_warm_pool" (include "arenite.pairs" . | fromJsonArray) }}{{- end -}}
{{- with .Values.sandboxes.volumes.storageClass }}{{- $_ := set $all "kubernetes_volume_class" . }}{{- end -}}
{{- if ne .Values.sandboxes.volumes.accessMode "ReadWriteOnce" }}{{- $_ := set $all "kubernetes_volume_access" .Values.sandboxes.volumes.accessMode }}{{- end -}}
{{- if include "arenite.podTemplate" . }}{{- $_ := set $all "kubernetes_template" "/etc/arenite/pod-template.yaml" }}{{- end -}}
{{- if include "arenite.hasIdentitySecret" . }}{{- $_ := set $all "kubernetes_identity" "/secrets/identity/identity.pem" }}{{- end -}}
{{- end -}}
{{- with .Values.sandboxes.imageRegistries }}{{- $_ := set $all "image_registry" . }}{{- end -}}
{{- if .Values.tls.secret }}
{{- $_ := set $all "tls_cert" "/secrets/tls/tls.crt" }}
{{- $_ := set $all "tls_key" "/secrets/tls/tls.key" }}
{{- end -}}
{{- range $key, $value := mergeOverwrite $all (deepCopy .Values.settings) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end -}}

{{/* Combinations of values that can't work. */}}
{{- define "arenite.check" -}}
{{- if and .Values.postgres.enabled (or .Values.database.url .Values.database.existingSecret) -}}
{{- fail "postgres.enabled excludes database.url and database.existingSecret" -}}
{{- end -}}
{{- if and (not (include "arenite.apiKeySecret" .)) (not .Values.tenants) -}}
{{- fail "callers would need no key: set apiKey.create, apiKey.existingSecret, or tenants" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.hosts) -}}
{{- fail "an Ingress needs a name in hosts" -}}
{{- end -}}
{{- if eq .Values.mode "nodes" -}}
{{- if not (include "arenite.hasPostgres" .) -}}
{{- fail "nodes share a Postgres database: set database.existingSecret, database.url, or postgres.enabled" -}}
{{- end -}}
{{- if .Values.podDisruptionBudget.enabled -}}
{{- fail "podDisruptionBudget is for the mode pods: a drain leaves the pods of a DaemonSet, and a budget can't count them" -}}
{{- end -}}
{{- $pods := list -}}
{{- range $name := list "images" "nodeSelector" "podTemplate" "runtimeClasses" "guestImage" -}}
{{- if get $.Values.sandboxes $name -}}{{- $pods = append $pods (printf "sandboxes.%s" $name) -}}{{- end -}}
{{- end -}}
{{- if .Values.sandboxes.volumes.storageClass -}}{{- $pods = append $pods "sandboxes.volumes.storageClass" -}}{{- end -}}
{{- if .Values.agentSandbox.warmPools -}}{{- $pods = append $pods "agentSandbox.warmPools" -}}{{- end -}}
{{- if .Values.identity.existingSecret -}}{{- $pods = append $pods "identity.existingSecret" -}}{{- end -}}
{{- with $pods -}}
{{- fail (printf "the mode nodes has no pods of sandboxes, so remove %s" (join ", " .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The variables with secrets, and extraEnv. */}}
{{- define "arenite.env" -}}
{{- with include "arenite.apiKeySecret" . }}
- name: ARENITE_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ include "arenite.apiKeySecretKey" $ }}
{{- end }}
{{- if include "arenite.hasPostgres" . }}
- name: ARENITE_STORE
  valueFrom:
    secretKeyRef:
      name: {{ include "arenite.databaseSecret" . }}
      key: {{ include "arenite.databaseSecretKey" . }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "arenite.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (ne .Values.tls.secret "") -}}
# /ready is for alerts: it fails while no sandbox can be created, and calls into running sandboxes still work then.
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 90
readinessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* Metadata of the servers' pods. */}}
{{- define "arenite.podMetadata" -}}
labels:
  {{- with .Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- include "arenite.labels" . | nindent 2 }}
annotations:
  checksum/config: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
  {{- with .Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Fields of the servers' pods that both modes have. */}}
{{- define "arenite.pod" -}}
serviceAccountName: {{ include "arenite.serviceAccount" . }}
automountServiceAccountToken: {{ eq .Values.mode "pods" }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
